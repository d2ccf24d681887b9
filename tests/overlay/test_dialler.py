"""Whom the dialler dials and when, in virtual time and without a network."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock as Clock

from peerinfer.config import OverlayConfig
from peerinfer.core.types import PeerId
from peerinfer.overlay.backoff import TokenBucket, backoff_s
from peerinfer.overlay.dialler import DIRECT_AGAIN_S, GIVE_UP_S, HEARD_RETRY_S, DialError, Dialler
from peerinfer.overlay.reasons import NO_ANSWER

ME, PEER, OTHER = PeerId("me"), PeerId("peer"), PeerId("other")
ADDR = "/ip4/10.0.0.1/tcp/1"


class Network:
    """What is there to dial: addresses that answer, and those that never do."""

    def __init__(self) -> None:
        self.dialled: list[tuple[float, PeerId, str]] = []
        self.up: set[str] = set()
        self.silent: set[str] = set()
        self.broken: set[str] = set()
        self.dialler: Dialler

    async def dial(self, peer: PeerId, addr: str) -> None:
        self.dialled.append((trio.current_time(), peer, addr))
        if addr in self.broken:
            raise IndexError
        if addr in self.silent:
            await trio.sleep_forever()
        await trio.sleep(0.01)
        if addr not in self.up:
            raise DialError("Connection refused")
        self.dialler.link_up(peer)

    def times(self, peer: PeerId = PEER) -> list[float]:
        return [at for at, dialled, _ in self.dialled if dialled == peer]


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    """A dialler at work, without jitter."""
    network = Network()
    network.dialler = Dialler(me=ME, config=OverlayConfig(), dial=network.dial, draw=lambda: 0.5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.dialler.run)
        yield network
        nursery.cancel_scope.cancel()


async def test_a_dial_that_fails_in_an_unknown_way_is_a_failed_dial(
    network: Network, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: no peer ends the dialler. Method: an error that is none of the expected; another peer's turn."""
    caplog.set_level(logging.INFO, "peerinfer.overlay")
    network.broken.add("/ip4/10.0.0.9/tcp/1")
    network.dialler.give([(PEER, "/ip4/10.0.0.9/tcp/1")])
    await trio.sleep(60)
    assert len(network.times(PEER)) > 3
    network.up.add(ADDR)
    network.dialler.give([(OTHER, ADDR)])
    await trio.sleep(1)
    assert len(network.times(OTHER)) == 1
    assert "peer=peer state=unreachable" in caplog.text
    assert "IndexError" in caplog.text


async def test_a_given_peer_is_dialled_for_ever_with_backoff(network: Network, autojump_clock: Clock) -> None:
    """Situation 9: the bootstrap peer comes up last, or never."""
    network.dialler.give([(PEER, ADDR)])
    await trio.sleep(600)
    gaps = [later - earlier for earlier, later in zip(network.times(), network.times()[1:], strict=False)]
    assert gaps[:5] == pytest.approx([0.51, 1.01, 2.01, 4.01, 8.01], abs=0.15)
    assert gaps[8:] == pytest.approx([30.01] * len(gaps[8:]), abs=0.15)
    assert len(gaps) > 15


async def test_another_reason_is_told_again_and_the_same_one_is_not(
    network: Network, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a peer that was down and is up again with another key says so. Method: two kinds of failure."""
    caplog.set_level(logging.INFO, "peerinfer.overlay")
    network.dialler.give([(PEER, ADDR)])
    await trio.sleep(60)
    network.broken.add(ADDR)
    await trio.sleep(120)
    told = [each for each in caplog.messages if "state=unreachable" in each]
    assert len(told) == 2
    assert "IndexError" not in told[0]
    assert "IndexError" in told[1]


async def test_all_addresses_of_a_peer_are_tried(network: Network, autojump_clock: Clock) -> None:
    network.up = {"/ip4/10.0.0.2/tcp/1"}
    network.dialler.give([(PEER, ADDR), (PEER, "/ip4/10.0.0.2/tcp/1")])
    await trio.sleep(1)
    assert [addr for _, _, addr in network.dialled] == [ADDR, "/ip4/10.0.0.2/tcp/1"]


async def test_a_linked_peer_is_left_alone_and_a_lost_one_dialled_within_a_second(
    network: Network, autojump_clock: Clock
) -> None:
    network.up = {ADDR}
    network.dialler.give([(PEER, ADDR)])
    await trio.sleep(300)
    assert len(network.times()) == 1
    lost_at = trio.current_time()
    network.dialler.link_down(PEER)
    await trio.sleep(300)
    assert network.times()[1] - lost_at < 1
    assert len(network.times()) == 2


async def test_a_link_that_does_not_last_is_not_dialled_in_a_loop(
    network: Network, autojump_clock: Clock
) -> None:
    network.up = {ADDR}
    network.dialler.give([(PEER, ADDR)])
    for _ in range(600):
        await trio.sleep(0.1)
        if len(network.times()) > len(network.dialled) - 1:
            network.dialler.link_down(PEER)
    assert len(network.times()) < 12


async def test_a_silent_address_costs_the_dial_timeout(network: Network, autojump_clock: Clock) -> None:
    network.silent = {ADDR}
    network.dialler.give([(PEER, ADDR)])
    await trio.sleep(7)
    assert network.times() == pytest.approx([0, 3.5], abs=0.2)


async def test_learned_peers_are_dialled_at_a_limited_rate(network: Network, autojump_clock: Clock) -> None:
    """Goal: a flood of announced addresses is no flood of dials. Method: 100 peers at once."""
    for number in range(100):
        network.dialler.learn(PeerId(f"p{number:03}"), [f"/ip4/10.0.1.{number}/tcp/1"], announced=True)
    await trio.sleep(0.5)
    assert len(network.dialled) <= 10 + 0.5 * 10 + 1
    await trio.sleep(20)
    assert len({peer for _, peer, _ in network.dialled}) == 100


async def test_a_learned_peer_that_is_gone_is_given_up(network: Network, autojump_clock: Clock) -> None:
    """Situation 19: others go on naming it, and nobody resurrects it."""
    network.dialler.learn(PEER, [ADDR], announced=True)
    await trio.sleep(GIVE_UP_S + 60)
    tries = len(network.times())
    network.dialler.learn(PEER, [ADDR], announced=False)
    await trio.sleep(60)
    assert len(network.times()) == tries
    network.dialler.learn(PEER, [ADDR], announced=True)
    await trio.sleep(1)
    assert len(network.times()) > tries


async def test_a_peer_that_lets_itself_be_heard_is_tried_soon(
    network: Network, autojump_clock: Clock
) -> None:
    """Goal: after a partition nobody sits out its backoff. Method: announce while the wait is 30 s."""
    network.dialler.learn(PEER, [ADDR], announced=True)
    await trio.sleep(120)
    network.up = {ADDR}
    heard_at = trio.current_time()
    network.dialler.learn(PEER, [ADDR], announced=True)
    await trio.sleep(60)
    assert network.times()[-1] - heard_at <= HEARD_RETRY_S + 0.2


async def test_nobody_dials_itself_or_whoever_is_linked_already(
    network: Network, autojump_clock: Clock
) -> None:
    network.dialler.give([(ME, ADDR)])
    network.dialler.learn(ME, [ADDR], announced=True)
    network.dialler.link_up(OTHER)
    network.dialler.learn(OTHER, [ADDR], announced=True)
    await trio.sleep(60)
    assert not network.dialled


async def test_a_refused_peer_is_left_alone(network: Network, autojump_clock: Clock) -> None:
    network.dialler.learn(PEER, [ADDR], announced=True)
    await trio.sleep(1)
    network.dialler.refuse(PEER, for_s=60)
    refused_at = trio.current_time()
    for _ in range(50):
        network.dialler.learn(PEER, [ADDR], announced=True)
        await trio.sleep(1)
    assert not [at for at in network.times() if at > refused_at + 0.1]


async def test_one_line_is_logged_for_each_change(
    network: Network, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "peerinfer.overlay")
    network.dialler.give([(PEER, ADDR)])
    await trio.sleep(120)
    network.up = {ADDR}
    await trio.sleep(40)
    network.dialler.link_down(PEER)
    states = [record.getMessage().split()[1] for record in caplog.records]
    assert states == ["state=unreachable", "state=linked", "state=lost"]
    assert "Connection refused" in caplog.text


async def test_whom_a_node_was_told_to_join_and_does_not_reach_is_known_with_the_reasons(
    network: Network, autojump_clock: Clock
) -> None:
    """Goal: a node that is alone can say why. Method: two addresses that fail differently, and a peer that
    was only learned; then the peer comes up at another address, and is lost again."""
    silent, other = "/ip4/10.0.0.2/tcp/1", "/ip4/10.0.0.3/tcp/1"
    network.silent.add(silent)
    network.dialler.give([(PEER, ADDR), (PEER, silent)])
    network.dialler.learn(OTHER, [other], announced=True)
    assert set(network.dialler.unreached().values()) == {"not tried yet"}
    await trio.sleep(10)
    assert network.dialler.unreached() == {
        f"{ADDR}/p2p/{PEER}": "Connection refused",
        f"{silent}/p2p/{PEER}": NO_ANSWER.format(OverlayConfig().dial_timeout_s),
    }
    network.dialler.link_up(PEER)
    assert network.dialler.unreached() == {}
    network.dialler.link_down(PEER)
    assert set(network.dialler.unreached().values()) == {"not tried yet"}


async def test_nothing_is_kept_of_addresses_that_a_peer_announced_once(
    network: Network, autojump_clock: Clock
) -> None:
    """Goal: a peer that only others hear, and that announces another address each time, costs no memory."""
    network.dialler.give([(PEER, ADDR)])
    for number in range(100):
        network.dialler.learn(PEER, [f"/ip4/10.0.1.{number}/tcp/1"], announced=True)
        await trio.sleep(2 * HEARD_RETRY_S)
    assert len({addr for _, _, addr in network.dialled}) == 101
    assert set(network.dialler._targets[PEER].reasons) == {ADDR}


async def test_addresses_that_take_no_connection_do_not_hold_up_a_given_peer(
    network: Network, autojump_clock: Clock
) -> None:
    """Goal: a peer cannot cut a node off by naming others. Method: many silent ones, then one given."""
    network.up.add(ADDR)
    for number in range(500):
        silent = [f"/ip4/10.1.{number // 250}.{number % 250}/tcp/{port}" for port in range(1, 9)]
        network.silent.update(silent)
        network.dialler.learn(PeerId(f"made-up-{number}"), silent, announced=False)
    await trio.sleep(60)
    network.dialler.give([(PEER, ADDR)])
    await trio.sleep(1)
    assert len(network.times()) == 1


def test_backoff_doubles_up_to_its_limit_and_jitters() -> None:
    def waits(draw: float) -> list[float]:
        return [backoff_s(n, min_s=0.5, max_s=30, draw=lambda: draw) for n in (0, 1, 2, 10, 10_000)]

    assert waits(0.5) == [0.5, 1, 2, 30, 30]
    assert waits(0.0) == [0.375, 0.75, 1.5, 22.5, 22.5]


def test_a_token_bucket_limits_the_rate_but_not_a_burst() -> None:
    bucket = TokenBucket(rate_per_s=2, burst=3)
    assert [bucket.take(now=100) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(now=100.5) for _ in range(2)] == [True, False]
    assert sum(bucket.take(now=1000) for _ in range(10)) == 3


async def test_a_relayed_peer_is_dialled_when_it_announces_other_addresses_and_now_and_then(
    network: Network, autojump_clock: Clock
) -> None:
    """Goal: a relay is left as soon as its far end can be dialled, without trying that every few seconds.
    Method: one that announces the same address each second, then another one, which answers."""
    network.dialler.learn(PEER, [ADDR], announced=True)
    await trio.sleep(1)
    network.dialler.link_up(PEER, relayed=True)
    await trio.sleep(5)
    before = len(network.dialled)
    for _ in range(int(2 * DIRECT_AGAIN_S)):
        network.dialler.learn(PEER, [ADDR], announced=True)
        await trio.sleep(1)
    assert len(network.dialled) - before == 2
    outside = "/ip4/45.0.0.2/tcp/1"
    network.dialler.learn(PEER, [outside, ADDR], announced=True)
    await trio.sleep(1)
    assert network.dialled[-2][2] == outside
    network.dialler.link_direct(PEER)
    dialled = len(network.dialled)
    network.dialler.learn(PEER, [ADDR], announced=True)
    await trio.sleep(2 * DIRECT_AGAIN_S)
    assert len(network.dialled) == dialled
    network.dialler.link_down(PEER)
    await trio.sleep(1)
    assert len(network.dialled) > dialled


async def test_a_relayed_peer_that_was_never_tried_is_dialled_once(
    network: Network, autojump_clock: Clock
) -> None:
    """It came through a relay by itself: perhaps only this node cannot be dialled."""
    network.dialler.link_up(PEER, relayed=True)
    network.dialler.learn(PEER, [ADDR], announced=True)
    await trio.sleep(60)
    assert len(network.dialled) == 1


async def test_addresses_that_a_relayed_peer_announces_while_it_is_dialled_are_dialled_next(
    network: Network, autojump_clock: Clock
) -> None:
    """As when its router has got another address: the old one is silent."""
    network.silent.add(ADDR)
    network.dialler.learn(PEER, [ADDR], announced=True)
    await trio.sleep(1)
    network.dialler.link_up(PEER, relayed=True)
    network.dialler.learn(PEER, ["/ip4/45.0.0.20/tcp/1"], announced=True)
    await trio.sleep(10)
    assert [addr for _, _, addr in network.dialled] == [ADDR, "/ip4/45.0.0.20/tcp/1"]
