"""Round trips that are measured before they are needed.

A link is asked for its wait at once when it comes up and the peer is known, since nothing is forwarded there
before (core/router.py); then some times more, since a round trip that is measured while everybody starts is
mostly the start; then now and again, which also tells how busy an idle-looking peer is.
In a large swarm the links take turns, so that asking costs each node no more than a bounded rate.
The answer also tells what the peer knows of us: a node that lost its stored incarnation learns from it
that it must go above the one its peers remember, or they would take all it says for old news.
"""

from __future__ import annotations

import heapq
import itertools

import trio

from peerinfer.core.frames import Ask, Wait
from peerinfer.core.types import PeerId
from peerinfer.node.context import Context, log
from peerinfer.node.ports import PeerLostError

FIRST_PROBES_S = (0.0, 0.5, 1.0, 2.0, 5.0)
"""When a new link is asked, counted from its first probe."""
TICK_S = 0.5
INCARNATION_MAX = 2**43
"""In ms, the year 2248: what is above was not made by a clock, and believing it could not be undone."""


class Probes:
    """Asks every link by its schedule."""

    def __init__(self, node: Context) -> None:
        self._node = node
        self._numbers = itertools.count()
        self._links: dict[PeerId, int] = {}
        """Linked peers, each with the number of its link."""
        self._changed = trio.Event()
        self._due: list[tuple[float, int, PeerId, float | None]] = []
        """When to ask, the link's number, the peer, and when this link was asked first."""

    def link_up(self, peer: PeerId) -> None:
        """Ask this peer from now on."""
        number = self._links[peer] = next(self._numbers)
        heapq.heappush(self._due, (trio.current_time(), number, peer, None))
        self._changed.set()

    def heard(self, peer: PeerId) -> None:
        """A peer is known that was not: ask it now, if it is linked."""
        if peer in self._links:
            self.link_up(peer)

    def link_down(self, peer: PeerId) -> None:
        """Do not, any more."""
        self._links.pop(peer, None)

    async def run(self) -> None:
        """Ask, for as long as the node lives."""
        per_s = self._node.config.request.probes_per_s_max
        most = allowed = max(1.0, TICK_S * per_s)
        async with trio.open_nursery() as nursery:
            while True:
                asked = self._next(int(allowed))
                for peer in asked:
                    nursery.start_soon(_probe, self._node, peer)
                began_at = trio.current_time()
                with trio.move_on_after(TICK_S):
                    await self._changed.wait()
                self._changed = trio.Event()
                passed_s = trio.current_time() - began_at
                allowed = min(most, allowed - len(asked) + passed_s * per_s)

    def _next(self, most: int) -> list[PeerId]:
        """The peers to be asked now, which are then due again by their schedules."""
        now = trio.current_time()
        asked: list[PeerId] = []
        while self._due and self._due[0][0] <= now and len(asked) < most:
            _, number, peer, first_at = heapq.heappop(self._due)
            if self._links.get(peer) != number:
                continue
            if peer in self._node.view:
                asked.append(peer)
                first_at = now if first_at is None else first_at
                at = self._after(now, first_at)
            else:
                at = now + TICK_S  # not heard of yet, or no peerinfer node
            heapq.heappush(self._due, (at, number, peer, first_at))
        return asked

    def _after(self, now: float, first_at: float) -> float:
        for after_s in FIRST_PROBES_S:
            if first_at + after_s > now:
                return first_at + after_s
        return now + self._node.config.request.probe_interval_s


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
        peer,
        wait.load,
        incarnation=wait.incarnation,
        seq=wait.seq,
        now=trio.current_time(),
        yours=wait.yours,
    )
    if wait.known_incarnation > INCARNATION_MAX:
        node.drop("request", peer, "an incarnation that no clock has made")
    elif wait.known_incarnation > node.incarnation:
        node.renew_incarnation(above=wait.known_incarnation)
