"""Round trips that are measured before they are needed.

A link is asked for its wait several times when it comes up, since a round trip that is measured while
everybody starts is mostly the start; then now and again, which also tells how busy an idle-looking peer is.
The answer also tells what the peer knows of us: a node that lost its stored incarnation learns from it
that it must go above the one its peers remember, or they would take all it says for old news.
"""

from __future__ import annotations

import trio

from peerinfer.core.frames import Ask, Wait
from peerinfer.core.types import PeerId
from peerinfer.node.context import Context, log
from peerinfer.node.ports import PeerLostError

FIRST_PROBES_S = (0.0, 0.5, 1.0, 2.0, 5.0)
"""When a new link is asked, counted from when the peer is known."""
TICK_S = 0.5
INCARNATION_MAX = 2**43
"""In ms, the year 2248: what is above was not made by a clock, and believing it could not be undone."""


async def probe_links(node: Context) -> None:
    """Ask every link by its schedule, for as long as the node lives."""
    due: dict[PeerId, list[float]] = {}
    async with trio.open_nursery() as nursery:
        while True:
            now = trio.current_time()
            links = [peer for peer in node.overlay.links() if node.view.get(peer) is not None]
            due = {peer: due.get(peer) or [now + after for after in FIRST_PROBES_S] for peer in links}
            for peer, times in due.items():
                if times[0] <= now:
                    times.pop(0)
                    if not times:
                        times.append(now + node.config.request.probe_interval_s)
                    nursery.start_soon(_probe, node, peer)
            await trio.sleep(TICK_S)


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
    except Exception:  # one peer's answer must not end the node
        log.exception("peer=%s probe failed", peer)


def _take(node: Context, peer: PeerId, wait: Wait, round_trip_s: float) -> None:
    node.view.observe_round_trip(peer, round_trip_s)
    node.view.observe_load(
        peer, wait.load, incarnation=wait.incarnation, seq=wait.seq, now=trio.current_time()
    )
    if wait.known_incarnation > INCARNATION_MAX:
        node.drop("request", peer, "an incarnation that no clock has made")
    elif wait.known_incarnation > node.incarnation:
        node.renew_incarnation(above=wait.known_incarnation)
