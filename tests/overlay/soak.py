"""The soak: request and cancel cycles between two processes, with garbage, freezes and kills in between.

Usage: python -m tests.overlay.soak [--cycles 10000]

Every cycle is a call; three of four are cut short at a random moment. One stream of garbage goes out for
every 50 cycles, both sides dial each other once more for every 500, the peer is frozen for 2 s at half
time and killed and restarted at the end. It prints what happened; tests hold a short run to it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import trio
from multiaddr import Multiaddr

from peerinfer.config import OverlayConfig
from peerinfer.core.frames import EndFrame, Request
from peerinfer.node.ports import PeerLostError
from peerinfer.overlay.host import dial, open_stream
from peerinfer.overlay.libp2p import LibP2POverlay
from peerinfer.overlay.stream_errors import STREAM_ERRORS
from peerinfer.overlay.streams import REQUEST_PROTOCOL
from tests.contract.overlay_worlds import PeerProcess, RecordingSink, until
from tests.overlay.peer_process import FRAME_BYTES_MAX, TOPIC

AT_ONCE = 8
BODY = os.urandom(4096)


@dataclass
class Outcome:
    """What a soak went through."""

    cycles: int
    complete: int = 0
    cancelled: int = 0
    lost: int = 0
    garbage: int = 0
    links_lost: int = 0
    connections: int = 0
    seconds: float = 0.0
    call_p50_ms: float = 0.0
    streams_left: int = 0
    rss_growth_mb: float = 0.0
    killed_noticed_s: float = 0.0
    back_s: float = 0.0


class Soak:
    """One run against one peer process."""

    def __init__(self, overlay: LibP2POverlay, sink: RecordingSink, peer: PeerProcess, cycles: int) -> None:
        self._overlay, self._sink, self._peer = overlay, sink, peer
        self._random = random.Random(1)
        self.outcome = Outcome(cycles)

    async def run(self) -> None:
        """All cycles, then what is left of them."""
        await self._calls_in_a_row(100)  # what is allocated once is allocated now
        rss = psutil.Process().memory_info().rss
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            limit = trio.Semaphore(AT_ONCE)
            for number in range(self.outcome.cycles):
                await limit.acquire()
                nursery.start_soon(self._cycle, number, limit)
                if number % 50 == 25:
                    nursery.start_soon(self._garbage)
                if number % 500 == 250:
                    nursery.start_soon(self._dial_once_more)
                if number == self.outcome.cycles // 2:
                    nursery.start_soon(self._freeze)
        self.outcome.seconds = time.perf_counter() - began
        await trio.sleep(1)
        self.outcome.call_p50_ms = 1000 * await self._calls_in_a_row(200)
        self.outcome.rss_growth_mb = (psutil.Process().memory_info().rss - rss) / 1e6
        self.outcome.links_lost = len(self._sink.down)
        connections = self._links()._connections(self._peer.id)
        self.outcome.connections = len(connections)
        self.outcome.streams_left = sum(len(each.muxed_conn.streams) for each in connections)

    async def kill_and_restart(self, data_dir: Path, address: str) -> PeerProcess:
        """The peer dies and comes back under its name."""
        self._peer.kill()
        began = trio.current_time()
        await until(lambda: self._peer.id not in self._overlay.links(), within_s=10)
        self.outcome.killed_noticed_s = trio.current_time() - began
        again = await trio.to_thread.run_sync(PeerProcess, data_dir, "--join", address)
        began = trio.current_time()
        await until(lambda: again.id in self._overlay.links(), within_s=10)
        self.outcome.back_s = trio.current_time() - began
        return again

    async def _cycle(self, number: int, limit: trio.Semaphore) -> None:
        cut_after_s = self._random.uniform(0, 0.03) if number % 4 else 60
        try:
            with trio.move_on_after(cut_after_s) as scope:
                await self._call(f"r{number}", endless=bool(number % 8 == 1))
                self.outcome.complete += 1
            self.outcome.cancelled += scope.cancelled_caught
        except PeerLostError:
            self.outcome.lost += 1
        finally:
            limit.release()

    async def _call(self, name: str, *, endless: bool = False) -> None:
        opening = Request(
            id=name,
            endpoint="chat",
            body=BODY,
            fingerprint=bytes(16),
            prompt_pages=0 if endless else 1,
            expected_cached_tokens=0,
            time_left_s=60.0,
        )
        async with self._overlay.open_call(self._peer.id) as call:
            await call.send(opening)
            while not isinstance(await call.receive(), EndFrame):
                pass

    async def _calls_in_a_row(self, count: int) -> float:
        """The median of their durations."""
        durations = []
        for number in range(count):
            began = time.perf_counter()
            await self._call(f"s{number}")
            durations.append(time.perf_counter() - began)
        return sorted(durations)[count // 2]

    async def _garbage(self) -> None:
        try:
            stream = await open_stream(self._host(), self._peer.id, REQUEST_PROTOCOL)
        except PeerLostError:
            return
        await stream.write(b"\x07garbage")
        self.outcome.garbage += 1

    async def _dial_once_more(self) -> None:
        (addr,) = self._overlay.links()[self._peer.id].addrs[:1]
        with suppress(*STREAM_ERRORS):  # it may be frozen for longer than a handshake may take
            await dial(self._host(), self._peer.id, Multiaddr(addr))

    async def _freeze(self) -> None:
        self._peer.freeze()
        await trio.sleep(2)
        self._peer.thaw()

    def _host(self) -> Any:
        assert self._overlay._swarm is not None
        return self._overlay._swarm.host

    def _links(self) -> Any:
        assert self._overlay._swarm is not None
        return self._overlay._swarm.links


async def soak(cycles: int, directory: Path) -> Outcome:
    """Run it; everything it starts has ended when it returns."""
    config = OverlayConfig(listen=("/ip4/127.0.0.1/tcp/0",))
    overlay = LibP2POverlay(
        data_dir=directory / "here", config=config, topic=TOPIC, frame_bytes_max=FRAME_BYTES_MAX
    )
    sink = RecordingSink()
    async with overlay.run(sink):
        address = overlay.addrs()[0]
        peer = await trio.to_thread.run_sync(PeerProcess, directory / "there", "--join", address)
        try:
            await until(lambda: bool(overlay.links()) and bool(overlay.links()[peer.id].addrs), within_s=10)
            run = Soak(overlay, sink, peer, cycles)
            await run.run()
            again = await run.kill_and_restart(directory / "there", address)
            again.close()
        finally:
            peer.close()
    return run.outcome


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycles", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcome = trio.run(soak, options.cycles, Path(directory))
    print(json.dumps(asdict(outcome), indent=1))


if __name__ == "__main__":
    main()
