"""Everything that arrives anywhere in a simulated world, in the order of time.

One task acts for all nodes: with a task for each, waking up would cost more than what arrives. What is due
at a frozen node waits until it thaws; what is due at one that is gone never happens. What an act raises is
a bug to be found, and its receiver's to fail by.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import trio

from peerinfer.core.types import PeerId
from peerinfer.sim.digest import Digest

Act = Callable[[], None]


class Receiver(Protocol):
    """Somebody at whom things arrive."""

    @property
    def peer_id(self) -> PeerId:
        """Its name."""

    def fail(self, error: Exception) -> None:
        """What was to happen here raised this."""


class Postman:
    """Calls each act at its time, for whoever is still there then."""

    def __init__(self) -> None:
        self.digest = Digest()
        """Of all that arrived."""
        self.arrivals = 0
        """How many things have arrived."""
        self._due: list[tuple[float, int, Sequence[Receiver], Callable[[Any], None]]] = []
        self._numbers = itertools.count()
        self._present: set[Receiver] = set()
        self._held: dict[Receiver, list[Act]] = {}
        self._wake = trio.Event()
        self._wakes_at = -math.inf
        self._running = False

    def post(self, at: float, receiver: Receiver, act: Act) -> None:
        """Have `act` called at that time of trio's clock."""
        if receiver in self._present:
            self.post_all(at, (receiver,), lambda _: act())

    def post_all(self, at: float, receivers: Sequence[Receiver], act: Callable[[Any], None]) -> None:
        """Have `act` called for each of them at that time: what is one for a thousand nodes is kept once."""
        heapq.heappush(self._due, (at, next(self._numbers), receivers, act))
        if at < self._wakes_at:
            self._wake.set()

    def attach(self, receiver: Receiver) -> None:
        """It is there from now on."""
        self._present.add(receiver)
        if not self._running:
            self._running = True
            trio.lowlevel.spawn_system_task(self._run)

    def detach(self, receiver: Receiver) -> None:
        """Nothing happens there any more, whatever is under way."""
        self._present.discard(receiver)
        self._held.pop(receiver, None)

    def hold(self, receiver: Receiver) -> None:
        """Keep what is due there from now on."""
        self._held.setdefault(receiver, [])

    def holds(self, receiver: Receiver) -> bool:
        """Whether what is due there is kept."""
        return receiver in self._held

    def release(self, receiver: Receiver) -> None:
        """Let what was kept happen now, in order."""
        for act in self._held.pop(receiver, []):
            self.post(trio.current_time(), receiver, act)

    async def _run(self) -> None:
        while True:
            now = trio.current_time()
            while self._due and self._due[0][0] <= now:
                at, _, receivers, act = heapq.heappop(self._due)
                for receiver in receivers:
                    if receiver in self._held:
                        self._held[receiver].append(partial(act, receiver))
                    elif receiver in self._present:
                        self.arrivals += 1
                        self.digest.arrived(at, receiver.peer_id)
                        _act(receiver, act)
            self._wakes_at = self._due[0][0] if self._due else math.inf
            self._wake = trio.Event()
            with trio.move_on_at(self._wakes_at):
                await self._wake.wait()


def _act(receiver: Receiver, act: Callable[[Receiver], None]) -> None:
    try:
        act(receiver)
    except Exception as error:
        receiver.fail(error)
