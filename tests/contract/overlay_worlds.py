"""The two worlds in which the overlay's contract is tested: real hosts on loopback, and the simulation."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import trio

from peerinfer.config import OverlayConfig
from peerinfer.core.frames import Ask, Request
from peerinfer.core.swarm_key import SwarmKey
from peerinfer.core.types import PeerId
from peerinfer.node.ports import Call, Overlay
from peerinfer.overlay.delayed import DelayedOverlay
from peerinfer.overlay.libp2p import LibP2POverlay
from peerinfer.sim.network import Conditions, SimNetwork
from tests.overlay.peer_process import FRAME_BYTES_MAX, TOPIC, serve

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
REPOSITORY = Path(__file__).parents[2]


async def until(condition: Callable[[], bool], *, within_s: float) -> None:
    """Return as soon as the condition holds; fail when it does not in time."""
    with trio.fail_after(within_s):
        while not condition():
            await trio.sleep(0.01)


class RecordingSink:
    """Keeps what an overlay delivers, and serves calls as every peer in these tests does."""

    def __init__(self) -> None:
        self.messages: list[tuple[PeerId, bytes]] = []
        self.up: list[PeerId] = []
        self.down: list[PeerId] = []
        self.drops: Counter[str] = Counter()
        self.reasons: list[str] = []
        self.serving = 0
        self.cancelled = 0

    def gossip(self, peer: PeerId, payload: bytes) -> None:
        self.messages.append((peer, payload))

    def link_up(self, peer: PeerId) -> None:
        self.up.append(peer)

    def link_down(self, peer: PeerId) -> None:
        self.down.append(peer)

    def hello(self) -> bytes:
        return b"hello " * 5000

    def dropped(self, kind: str, peer: PeerId | None, reason: str) -> None:
        self.drops[kind] += 1
        self.reasons.append(reason)

    async def serve_call(self, call: Call, opening: Request | Ask) -> None:
        self.serving += 1
        try:
            if isinstance(opening, Request) and opening.body == b"raise":
                raise RuntimeError("a bug in whoever serves")
            await serve(call, opening)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.serving -= 1


class Peer:
    """An overlay that runs in this process, and what it delivered."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay
        self.sink = RecordingSink()
        self.stop = trio.Event()

    @property
    def id(self) -> PeerId:
        return self.overlay.peer_id

    @property
    def address(self) -> str:
        return self.overlay.addrs()[0]

    def linked_to(self, *others: PeerId) -> bool:
        return set(others) <= set(self.overlay.links())


class Mortal(Protocol):
    """A peer that can be killed without a word."""

    id: PeerId

    def kill(self) -> None:
        """It is gone now, and told nobody."""


class World(Protocol):
    """Where overlays meet."""

    async def start(self, *, join: Sequence[str] = ()) -> Peer:
        """A peer that listens."""

    async def stop(self, peer: Peer) -> None:
        """Leave its `run`."""

    async def start_mortal(self, *, join: Sequence[str] = ()) -> Mortal:
        """A peer to be killed."""

    async def fail_within_run(self, error: Exception) -> None:
        """Raise an error in the body of an overlay's `run`."""


class _Started:
    """Peers whose `run` is entered and left in tasks of their own, so that one can leave before others."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._left: dict[PeerId, trio.Event] = {}

    async def enter(self, overlay: Overlay) -> Peer:
        peer = Peer(overlay)
        await self._nursery.start(self._live, peer)
        return peer

    async def stop(self, peer: Peer) -> None:
        peer.stop.set()
        await self._left[peer.id].wait()

    async def _live(self, peer: Peer, task_status: trio.TaskStatus[None]) -> None:
        left = self._left[peer.id] = trio.Event()
        async with peer.overlay.run(peer.sink):
            task_status.started()
            await peer.stop.wait()
        left.set()


class SimulatedWorld(_Started):
    """Everything in memory, in virtual time; with the delay of experiments on top, or without."""

    def __init__(self, nursery: trio.Nursery, *, extra_delay_s: float = 0.0) -> None:
        super().__init__(nursery)
        self._extra_delay_s = extra_delay_s
        self.network = SimNetwork(seed=1, conditions=Conditions(delay_s=0.005, jitter_s=0.002))
        self._names = iter(range(1000))

    async def start(self, *, join: Sequence[str] = ()) -> Peer:
        return await self.enter(self._overlay(join))

    async def fail_within_run(self, error: Exception) -> None:
        async with self._overlay().run(RecordingSink()):
            raise error

    def _overlay(self, join: Sequence[str] = ()) -> Overlay:
        overlay = self.network.overlay(PeerId(f"peer-{next(self._names):03}"), join=join)
        if not self._extra_delay_s:
            return overlay
        extra_s = self._extra_delay_s
        return DelayedOverlay(overlay, delay_s=extra_s, jitter_s=extra_s / 4, seed=1)

    async def start_mortal(self, *, join: Sequence[str] = ()) -> Mortal:
        peer = await self.start(join=join)
        network = self.network

        class Simulated:
            id = peer.id

            def kill(self) -> None:
                network.crash(peer.id)

        return Simulated()


class PeerProcess:
    """A real peer in a process of its own."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tests.overlay.peer_process", str(data_dir), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        self.events: list[dict[str, object]] = []
        listening = self.read()
        self.id = PeerId(str(listening["peer"]))
        self.address = str(listening["addrs"][0])  # type: ignore[index]

    def read(self) -> dict[str, object]:
        """The next thing it tells; blocks."""
        assert self.process.stdout is not None
        event: dict[str, object] = json.loads(self.process.stdout.readline())
        return event

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, whatever state it is in."""
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class LibP2PWorld(_Started):
    """Real hosts on loopback, in real time."""

    def __init__(self, nursery: trio.Nursery, stack: AsyncExitStack, directory: Path) -> None:
        super().__init__(nursery)
        self._stack, self._directory = stack, directory
        self._numbers: dict[PeerId, int] = {}
        self._names = iter(range(1000))

    async def start(self, *, join: Sequence[str] = (), listen: str = LOOPBACK, **config: Any) -> Peer:
        return await self._start(next(self._names), join=tuple(join), listen=(listen,), **config)

    async def restart(self, peer: Peer, *, join: Sequence[str] = ()) -> Peer:
        """A peer that was stopped, with its identity."""
        number = self._numbers[peer.id]
        return await self._start(number, join=tuple(join), listen=(LOOPBACK,))

    async def fail_within_run(self, error: Exception) -> None:
        async with self._overlay(next(self._names), listen=(LOOPBACK,)).run(RecordingSink()):
            raise error

    async def _start(self, number: int, **config: Any) -> Peer:
        overlay = self._overlay(number, **config)
        self._numbers[overlay.peer_id] = number
        return await self.enter(overlay)

    def _overlay(self, number: int, *, swarm_key: SwarmKey | None = None, **config: Any) -> LibP2POverlay:
        return LibP2POverlay(
            data_dir=self._directory / str(number),
            config=OverlayConfig(**config),
            topic=TOPIC,
            frame_bytes_max=FRAME_BYTES_MAX,
            swarm_key=swarm_key,
        )

    async def start_mortal(self, *, join: Sequence[str] = ()) -> PeerProcess:
        options = [option for addr in join for option in ("--join", addr)]
        process = await trio.to_thread.run_sync(
            lambda: PeerProcess(self._directory / str(next(self._names)), *options)
        )
        self._stack.callback(process.close)
        return process


@asynccontextmanager
async def open_world(kind: str, directory: Path) -> AsyncIterator[World]:
    """A world of the kind that its name says, with nobody in it."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        match kind:
            case "simulated":
                yield SimulatedWorld(nursery)
            case "delayed":
                yield SimulatedWorld(nursery, extra_delay_s=0.05)
            case _:
                yield LibP2PWorld(nursery, stack, directory)
        nursery.cancel_scope.cancel()
