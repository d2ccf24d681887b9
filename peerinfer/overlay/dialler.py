"""Who is dialled, and when.

Given addresses are dialled for ever, with backoff. Addresses that were learned (announced by their
peer, or found on the way) are dialled at a limited rate, and given up when their peer has not been
heard of for minutes. A lost link is tried again within a second. A peer that is only reached through a relay
is tried now and then, and as soon as it announces other addresses: a relay is a detour. There is one log line
per change of a peer's state, or of the reason for it, not one per try. Time is trio's and the dialling itself
is a function that is passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import trio

from peerinfer.config import OverlayConfig
from peerinfer.core.types import PeerId
from peerinfer.overlay.backoff import TokenBucket, backoff_s
from peerinfer.overlay.reasons import NO_ANSWER

log = logging.getLogger("peerinfer.overlay")

GIVE_UP_S = 300.0  # guess; the node forgets a silent peer after as long
STABLE_S = 5.0  # guess
"""A link that lasted shorter counts as one more failure, or two nodes could reconnect in a tight loop."""
YIELD_S = 0.25  # guess: some times a connect on a LAN
"""Two nodes that learn of each other, or lose each other, at once need only one connection: one waits."""
HEARD_RETRY_S = 5.0  # guess
"""Between two tries of a peer that lets itself be heard, however long its backoff is by now."""
DIRECT_AGAIN_S = 300.0  # guess
"""Between two tries of a peer that is linked through a relay. Lower: more dials that come to nothing."""
TARGETS_MAX = 1024  # guess
AT_ONCE_MAX = 16  # guess
"""Dials of addresses learned from peers."""

Dial = Callable[[PeerId, str], Awaitable[None]]
"""Connects to a peer under one address. Raises `DialError`."""


class DialError(Exception):
    """The peer was not reached; the message says why, in a few words."""


@dataclass(slots=True)
class _Target:
    peer: PeerId
    given: tuple[str, ...] = ()
    """Addresses to dial for ever."""
    learned: tuple[str, ...] = ()
    heard_at: float = 0.0
    """When the peer announced itself, or was linked, last."""
    due_at: float = 0.0
    tried_at: float = float("-inf")
    refused_until: float = 0.0
    failures: int = 0
    dialling: bool = False
    unreachable: str | None = None
    """The reason that was told last."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why each given address failed last, since the last link."""

    def addrs(self) -> tuple[str, ...]:
        """All of them, the given ones first."""
        return tuple(dict.fromkeys(self.given + self.learned))


class Dialler:
    """Keeps a node linked to the peers it was given and the peers it learned of."""

    def __init__(
        self,
        *,
        me: PeerId,
        config: OverlayConfig,
        dial: Dial,
        draw: Callable[[], float],
        last_resort: Callable[[PeerId], Sequence[str]] = lambda _peer: (),
    ) -> None:
        """`last_resort` names addresses of a peer to try when all others have failed."""
        self._me, self._config, self._dial, self._draw = me, config, dial, draw
        self._last_resort = last_resort
        self._targets: dict[PeerId, _Target] = {}
        self._linked_at: dict[PeerId, float] = {}
        self._relayed: set[PeerId] = set()
        """Those among them that are not linked directly."""
        self._given_up: dict[PeerId, float] = {}
        self._rate = TokenBucket(rate_per_s=config.dials_per_s_max, burst=config.dials_per_s_max)
        self._at_once = trio.CapacityLimiter(AT_ONCE_MAX)
        self._wake = trio.Event()

    def give(self, peers: Iterable[tuple[PeerId, str]]) -> None:
        """Addresses to dial for ever."""
        for peer, addr in peers:
            if peer != self._me:
                target = self._targets.setdefault(peer, _Target(peer))
                target.given = (*target.given, addr)
        self._wake.set()

    def learn(self, peer: PeerId, addrs: Sequence[str], *, announced: bool) -> None:
        """Addresses of a peer: `announced` by itself just now, or only found somewhere."""
        now = trio.current_time()
        if peer == self._me or not addrs or (not announced and self._gave_up_lately(peer, now)):
            return
        target = self._targets.get(peer)
        if target is None:
            self._make_room()
            target = self._targets[peer] = _Target(peer, heard_at=now, due_at=now + self._yield_s(peer))
        if announced:
            target.heard_at = now
            if peer not in self._relayed or target.learned != tuple(addrs):
                worth_a_try_at = max(now + self._yield_s(peer), target.tried_at + HEARD_RETRY_S)
                target.due_at = min(target.due_at, max(worth_a_try_at, target.refused_until))
            self._given_up.pop(peer, None)
        target.learned = tuple(addrs)
        if self._wants(target):
            self._wake.set()

    def link_up(self, peer: PeerId, *, relayed: bool = False) -> None:
        """The peer is connected, whoever dialled, and if `relayed` through a third one."""
        log.info("peer=%s state=linked%s", peer, " through a relay" if relayed else "")
        self._linked_at[peer] = trio.current_time()
        if relayed:
            self._relayed.add(peer)
            self._wake.set()
        if target := self._targets.get(peer):
            target.heard_at = trio.current_time()
            target.unreachable = None
            target.reasons.clear()

    def link_direct(self, peer: PeerId) -> None:
        """A peer that was linked through a relay is now linked without one."""
        if peer in self._relayed:
            log.info("peer=%s state=linked directly by now", peer)
            self._relayed.discard(peer)

    def link_relayed(self, peer: PeerId) -> None:
        """A peer that was linked directly is now linked through a relay only."""
        if peer in self._linked_at and peer not in self._relayed:
            log.info("peer=%s state=linked through a relay by now", peer)
            self._relayed.add(peer)
            self._wake.set()

    def link_down(self, peer: PeerId) -> None:
        """The peer is not connected any more."""
        log.info("peer=%s state=lost", peer)
        self._relayed.discard(peer)
        now = trio.current_time()
        lasted_s = now - self._linked_at.pop(peer, now)
        if target := self._targets.get(peer):
            target.failures = 0 if lasted_s >= STABLE_S else target.failures + 1
            target.heard_at = now
            wait_s = self._wait_s(target) / 2 + self._yield_s(peer)
            target.due_at = max(now + wait_s, target.refused_until)
            self._wake.set()

    def refuse(self, peer: PeerId, *, for_s: float) -> None:
        """Leave a peer alone for a while."""
        if target := self._targets.get(peer):
            target.refused_until = target.due_at = trio.current_time() + for_s

    def unreached(self) -> dict[str, str]:
        """The given addresses, with `/p2p/…`, of peers that are not linked, and why."""
        return {
            f"{addr}/p2p/{target.peer}": target.reasons.get(addr, "not tried yet")
            for target in self._targets.values()
            if target.peer not in self._linked_at
            for addr in target.given
        }

    async def run(self) -> None:
        """Dial whoever is due, for ever."""
        async with trio.open_nursery() as nursery:
            while True:
                now = trio.current_time()
                for target in self._due(now):
                    target.dialling = True
                    nursery.start_soon(self._try, target)
                with trio.move_on_after(self._until_next(now)):
                    await self._wake.wait()
                self._wake = trio.Event()

    def _due(self, now: float) -> list[_Target]:
        """The targets to dial now; learned ones as the rate allows."""
        waiting = [each for each in self._targets.values() if self._wants(each) and each.due_at <= now]
        return [
            each
            for each in sorted(waiting, key=lambda each: (not each.given, each.due_at, each.peer))
            if each.given or self._rate.take(now=now)
        ]

    def _until_next(self, now: float) -> float:
        next_at = min((each.due_at for each in self._targets.values() if self._wants(each)), default=now + 60)
        return max(next_at - now, 1 / self._config.dials_per_s_max)

    def _wants(self, target: _Target) -> bool:
        """It is neither linked directly nor being dialled."""
        return not target.dialling and not self._is_direct(target.peer)

    def _is_direct(self, peer: PeerId) -> bool:
        return peer in self._linked_at and peer not in self._relayed

    async def _try(self, target: _Target) -> None:
        """Dial a target under its addresses in turn, until one works.

        Given ones do not queue behind addresses that peers made up, and that take no connection.
        """
        tried = target.addrs()
        reason: str | None = "the connection was not kept"
        async with nullcontext() if target.given else self._at_once:
            for addr in tried:
                if self._is_direct(target.peer):
                    break
                failure = await self._failure(target.peer, addr)
                if failure is None:
                    reason = None
                    break
                reason = f"{addr}: {failure}"
                if addr in target.given:  # peers may announce other addresses for ever
                    target.reasons[addr] = failure
            else:
                for addr in self._last_resort(target.peer):
                    if target.peer in self._linked_at or await self._failure(target.peer, addr) is None:
                        break
        target.dialling = False
        if target.peer not in self._linked_at:
            self._failed(target, reason or "the connection was not kept")
        elif (
            target.peer in self._relayed and target.addrs() == tried
        ):  # else it has announced others meanwhile
            target.tried_at = trio.current_time()
            target.due_at = target.tried_at + DIRECT_AGAIN_S * (0.5 + self._draw())
        self._wake.set()

    async def _failure(self, peer: PeerId, addr: str) -> str | None:
        """Dial one address; why it failed, or None if it did not."""
        try:
            with trio.fail_after(self._config.dial_timeout_s):
                await self._dial(peer, addr)
        except trio.TooSlowError:
            return NO_ANSWER.format(self._config.dial_timeout_s)
        except DialError as error:
            return str(error)
        except Exception as error:  # its fault or ours, and no reason to dial nobody any more
            return repr(error)
        return None

    def _failed(self, target: _Target, reason: str) -> None:
        now = target.tried_at = trio.current_time()
        target.due_at = max(target.due_at, now + self._wait_s(target))
        target.failures += 1
        if target.unreachable != reason:
            target.unreachable = reason
            log.info("peer=%s state=unreachable reason=%r; trying on", target.peer, reason)
        if not target.given and now - target.heard_at > GIVE_UP_S:
            log.info("peer=%s state=given-up", target.peer)
            del self._targets[target.peer]
            self._given_up[target.peer] = now

    def _gave_up_lately(self, peer: PeerId, now: float) -> bool:
        """Others go on naming a peer that is gone: that alone does not bring it back."""
        return now - self._given_up.get(peer, float("-inf")) < 2 * GIVE_UP_S

    def _make_room(self) -> None:
        """Forget the learned peer that was not heard of for the longest time."""
        while len(self._given_up) >= TARGETS_MAX:
            self._given_up.pop(next(iter(self._given_up)))
        if len(self._targets) < TARGETS_MAX:
            return
        learned = [each for each in self._targets.values() if not each.given and self._wants(each)]
        if len(learned) >= TARGETS_MAX:
            del self._targets[min(learned, key=lambda each: (each.heard_at, each.peer)).peer]

    def _yield_s(self, peer: PeerId) -> float:
        return 0.0 if self._me < peer else YIELD_S

    def _wait_s(self, target: _Target) -> float:
        return backoff_s(
            target.failures,
            min_s=self._config.dial_backoff_s_min,
            max_s=self._config.dial_backoff_s_max,
            draw=self._draw,
        )
