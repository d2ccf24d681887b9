"""Asking peers for their true wait, several at once, and for what they have of a prompt.

Their loads are in the view when this returns; what they have holds for this prompt and this moment, and is
returned.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from peerinfer.core.frames import Ask, Wait
from peerinfer.core.router import Prompt
from peerinfer.core.types import Holding, PeerId
from peerinfer.node.context import Context, log
from peerinfer.node.ports import PeerLostError

ASK_S_MIN = 0.05
"""A peer is given at least this long; a machine that is busy answers late, and that is an answer, too."""
ASK_ROUND_TRIPS = 3.0
"""A peer that takes longer than so many round trips is not waited for."""
ASK_AGAIN_S = 5.0  # guess
"""Nor asked for so long: each new prompt would wait in vain. Higher: one that was late once is missed."""


async def ask_all(node: Context, peers: Sequence[PeerId], prompt: Prompt) -> dict[PeerId, Holding]:
    """Ask these peers at the same time, and wait for the answers, but not long. Returns what they hold."""
    told: dict[PeerId, Holding] = {}
    now, in_vain = trio.current_time(), node.asked_in_vain
    asked = [peer for peer in peers if in_vain.get(peer, now) <= now]
    known = [record for peer in asked if (record := node.view.get(peer)) is not None]
    prior_s = node.config.routing.prior_round_trip_s
    slowest_s = max([prior_s if each.round_trip_s is None else each.round_trip_s for each in known] or [0.0])
    late = {record.peer for record in known}
    with trio.move_on_after(max(ASK_S_MIN, ASK_ROUND_TRIPS * slowest_s)):
        async with trio.open_nursery() as nursery:
            for record in known:
                nursery.start_soon(_ask, node, record.peer, prompt, told, late)
    if late:
        again_at = trio.current_time() + ASK_AGAIN_S
        still = {peer: at for peer, at in in_vain.items() if at > now}
        node.asked_in_vain = still | dict.fromkeys(late, again_at)
    return told


async def _ask(
    node: Context, peer: PeerId, prompt: Prompt, told: dict[PeerId, Holding], late: set[PeerId]
) -> None:
    try:
        async with node.overlay.open_call(peer) as call:
            await call.send(
                Ask(id="ask", prompt_tokens=prompt.tokens or 0, expected_cached_tokens=0, keys=prompt.keys)
            )
            frame = await call.receive()
    except PeerLostError:
        late.discard(peer)
        return  # the overlay has told
    late.discard(peer)
    if isinstance(frame, Wait):
        now = trio.current_time()
        if frame.holding is not None:
            told[peer] = _plausible(frame.holding, pages=len(prompt.keys))
        node.view.observe_load(
            peer,
            frame.load,
            incarnation=frame.incarnation,
            seq=frame.seq,
            now=now,
            yours=frame.yours,
        )
    else:
        log.debug("peer=%s answered an ask with %s", peer, type(frame).__name__)


def _plausible(holding: Holding, *, pages: int) -> Holding:
    """What a peer may say of a prompt of so many pages."""
    cached = min(pages, holding.cached_pages)
    return Holding(cached, max(cached, min(pages, holding.coming_pages)))
