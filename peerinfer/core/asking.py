"""Fresher than gossip: whom to ask for the true wait before a request goes out, and how long to wait there.

What is known of a peer's load is up to a polling interval old, and others forward to it meanwhile. Two cures,
each for one round trip. *Ask* the few best at once and decide anew, where a wait may be large against the
round trip; how large is judged by the wait that was told and, since that may be over or have only begun, by
how busy the target was lately. And where nobody seems to have a prompt, all of its prefill is at stake:
another entry node may just have sent the same somewhere, and where it is computed now it will be looked for
later. So whoever is asked says what it has of the prompt, too, or is about to have. And let the target have
the *last word*: a request says how long it may wait there before the next best would have been faster, and a
target whose wait is longer refuses at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from peerinfer.config import RoutingConfig
from peerinfer.core.policies import Candidate
from peerinfer.core.types import PeerId

RECENT_S = 43.0
"""The span that `recent_work_s` stands for: work counts half every 30 s (docs/protocol.md), 30 / ln 2."""

WAIT_TIMES = 1.1  # guess
"""A wait that is this many times the expected one is as expected. Higher: fewer refusals, and later ones."""

NEW_BELOW = 0.5  # guess
"""A prompt is new if the best target has less of it than this. Higher: more are asked about."""

PREFILLS_PER_REFUSAL = 0.5  # guess
"""Higher: what was refused stays sooner, and bursts at one entry are shared out less evenly."""


def worth_asking(
    targets: Sequence[Candidate], config: RoutingConfig, *, prompt_tokens: int, was_refused: bool
) -> tuple[PeerId, ...]:
    """The best peers, if asking them is worth a round trip: always after a refusal, since others are then
    busier than they seemed, too."""
    asked = [target for target in targets if target.away][: config.ask_peers_max]
    if not asked:
        return ()
    best = targets[0]
    known_tokens = best.expected_cached_tokens + best.in_flight_tokens
    is_new = known_tokens < NEW_BELOW * prompt_tokens
    busy = 1.0 if is_new else min(1.0, best.recent_work_s / RECENT_S)
    at_stake_s = best.wait_s + busy * best.prefill_s
    round_trip_s = max(target.rtt_s for target in asked)
    if was_refused or at_stake_s > config.ask_above_round_trips * round_trip_s:
        return tuple(target.peer for target in asked)
    return ()


def margin_s(config: RoutingConfig, ranking: Sequence[Candidate], *, refused: int) -> float:
    """What a peer must save for a request that so many have refused as `slower`.

    A refusal says that others move to where this node wants to move. If all try again for the sake of one
    prompt's prefill, they only change places; so it takes more with every refusal.
    """
    mine = next((each for each in ranking if not each.away), None)
    return config.forward_margin_s + (refused * PREFILLS_PER_REFUSAL * mine.prefill_s if mine else 0.0)


def wait_at_most_s(target: Candidate, targets: Sequence[Candidate]) -> float | None:
    """The wait at a target beyond which the next best is faster; None if there is no other.

    What was expected, as exactly as waits can be, and the round trip that a refusal takes, are granted in any
    case.
    """
    others = [other.first_token_s for other in targets if other.peer != target.peer]
    if not others:
        return None
    return max(min(others) - target.prefill_s, WAIT_TIMES * target.wait_s + target.rtt_s)
