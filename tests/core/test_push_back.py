"""An overloaded node says for how long to stay away; its peers come back one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.config import PushBackConfig, RoutingConfig
from peerinfer.core.cost_model import ANSWER_TOKENS
from peerinfer.core.push_back import PushBack, resume_at
from peerinfer.core.types import Load, PeerId

CONFIG = PushBackConfig(queue_per_slot_max=2.0, pause_s_max=10.0, resume_jitter=0.2)
ME, PEER = PeerId("me"), PeerId("peer")


def load(queued: int, *, tokens: int = 0) -> Load:
    """Two slots that decode a whole answer in a second; prefill of a thousand tokens takes one."""
    return Load(
        running=2,
        queued=queued,
        queued_prefill_tokens=tokens,
        prefill_tokens_per_s=1000.0,
        decode_tokens_per_s=ANSWER_TOKENS,
        slots=2,
    )


def test_a_queue_of_two_per_slot_is_bearable_and_one_more_is_not() -> None:
    push_back = PushBack(CONFIG)
    assert push_back.update(load(4), now=0.0) == 0.0
    assert push_back.update(load(5), now=0.0) > 0.0


def test_push_back_stays_until_the_queue_is_below_half() -> None:
    push_back = PushBack(CONFIG)
    advertised = [push_back.update(load(queued), now=0.0) > 0.0 for queued in (3, 5, 4, 3, 2, 1, 2, 4, 5)]
    assert advertised == [False, True, True, True, True, False, False, False, True]


def test_the_pause_is_the_time_that_the_load_takes_to_drain() -> None:
    push_back = PushBack(CONFIG, RoutingConfig())
    assert push_back.update(load(5, tokens=1500), now=7.0) == pytest.approx(1.5 / 2 + 3.0)
    assert push_back.paused_until == pytest.approx(7.0 + 3.75)
    assert push_back.update(load(0), now=9.0) == 0.0
    assert push_back.paused_until == 9.0


def test_the_pause_is_bounded() -> None:
    assert PushBack(CONFIG).update(load(50, tokens=10**6), now=0.0) == 10.0


@given(st.floats(0.0, 100.0), st.integers(0, 2**53), st.floats(0.0, 1e6))
def test_a_peer_resumes_within_a_fifth_of_the_pause_it_was_asked_for(
    paused_for_s: float, seq: int, now: float
) -> None:
    resumed = resume_at(paused_for_s, CONFIG, me=ME, peer=PEER, seq=seq, now=now)
    pause_s = min(paused_for_s, CONFIG.pause_s_max)
    assert now + 0.8 * pause_s - 1e-6 <= resumed <= now + 1.2 * pause_s + 1e-6


def test_peers_do_not_all_resume_at_once_but_each_does_so_repeatably() -> None:
    def resumed() -> list[float]:
        return [resume_at(5.0, CONFIG, me=PeerId(f"n{n}"), peer=PEER, seq=3, now=0.0) for n in range(100)]

    assert resumed() == resumed()
    assert len(set(resumed())) == 100
    assert max(resumed()) - min(resumed()) > 1.5
