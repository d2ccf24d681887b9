"""Round trips that are measured before they are needed.

A link is asked for its wait when it comes up, and again when nothing has been measured for a while.
The answer also tells what the peer knows of us: a node that lost its stored incarnation learns from it
that it must go above the one its peers remember, or they would take all it says for old news.
"""

from __future__ import annotations

import trio

from peerinfer.core.frames import Ask, Wait
from peerinfer.core.types import PeerId
from peerinfer.node.context import Context
from peerinfer.node.ports import PeerLostError


async def probe_links(node: Context) -> None:
    """Ask every link in turn, at most once per interval each, for as long as the node lives."""
    asked_at: dict[PeerId, float] = {}
    async with trio.open_nursery() as nursery:
        while True:
            now = trio.current_time()
            links = [peer for peer in node.overlay.links() if node.view.get(peer) is not None]
            asked_at = {peer: at for peer, at in asked_at.items() if peer in links}
            for peer in links:
                if now - asked_at.get(peer, -1e9) >= node.config.request.probe_interval_s:
                    asked_at[peer] = now
                    nursery.start_soon(_probe, node, peer)
            await trio.sleep(1.0)


async def _probe(node: Context, peer: PeerId) -> None:
    try:
        with trio.move_on_after(node.config.request.accept_timeout_s):
            async with node.overlay.open_call(peer) as call:
                sent_at = trio.current_time()  # after open_call, which may have had to negotiate a stream
                await call.send(Ask(id="ask", prompt_tokens=0, expected_cached_tokens=0))
                frame = await call.receive()
                if isinstance(frame, Wait):
                    _take(node, peer, frame, trio.current_time() - sent_at)
    except PeerLostError:
        return  # the overlay has told


def _take(node: Context, peer: PeerId, wait: Wait, round_trip_s: float) -> None:
    node.view.observe_round_trip(peer, round_trip_s)
    node.view.observe_load(
        peer, wait.load, incarnation=wait.incarnation, seq=wait.seq, now=trio.current_time()
    )
    if wait.known_incarnation > node.incarnation:
        node.renew_incarnation(above=wait.known_incarnation)
