"""A peer in a process of its own, for tests that kill, freeze or restart one.

Usage: python -m tests.overlay.peer_process DATA_DIR [--join ADDR] [--listen ADDR] [--beat SECONDS]

It prints one JSON object per line: its addresses once it listens, then each link that comes and goes.
A call is answered with `Accept`, some `Data` and `EndFrame`; one for zero pages is never ended.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import trio

from peerinfer.config import OverlayConfig
from peerinfer.core.frames import Accept, Ask, Data, EndFrame, Request, Wait
from peerinfer.core.types import Load, PeerId, Usage
from peerinfer.node.ports import Call
from peerinfer.overlay.libp2p import LibP2POverlay

TOPIC = "peerinfer/1/test"
FRAME_BYTES_MAX = 1024 * 1024
DATA_FRAMES = 3


def tell(**event: object) -> None:
    """One line for the test that started this process."""
    print(json.dumps(event), flush=True)


class Served:
    """Answers every call."""

    def gossip(self, peer: PeerId, payload: bytes) -> None:
        """Of no interest."""

    def link_up(self, peer: PeerId) -> None:
        tell(event="up", peer=peer)

    def link_down(self, peer: PeerId) -> None:
        tell(event="down", peer=peer)

    def hello(self) -> bytes:
        return b"hello from a process"

    def dropped(self, kind: str, peer: PeerId | None, reason: str) -> None:
        tell(event="dropped", kind=kind, reason=reason)

    async def serve_call(self, call: Call, opening: Request | Ask) -> None:
        await serve(call, opening)


async def serve(call: Call, opening: Request | Ask) -> None:
    """What every serving side in these tests does."""
    load = Load()
    if isinstance(opening, Ask):
        await call.send(Wait(id=opening.id, wait_s=0.0, incarnation=1, seq=1, load=load))
        return
    await call.send(Accept(id=opening.id, incarnation=1, seq=1, load=load))
    for _ in range(DATA_FRAMES):
        await call.send(Data(id=opening.id, sse_json=b"x" * 300))
    if opening.prompt_pages == 0:
        await trio.sleep_forever()
    usage = Usage(prompt_tokens=1, completion_tokens=DATA_FRAMES)
    await call.send(
        EndFrame(id=opening.id, usage=usage, cached_tokens=0, incarnation=1, tree_version=1, seq=1, load=load)
    )


async def main() -> None:
    """Run the peer until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--join", action="append", default=[])
    parser.add_argument("--listen", default="/ip4/127.0.0.1/tcp/0")
    parser.add_argument("--beat", type=float, default=0.0)
    options = parser.parse_args()
    config = OverlayConfig(listen=(options.listen,), join=tuple(options.join))
    overlay = LibP2POverlay(
        data_dir=options.data_dir, config=config, topic=TOPIC, frame_bytes_max=FRAME_BYTES_MAX
    )
    async with overlay.run(Served()):
        tell(event="listening", peer=overlay.peer_id, addrs=overlay.addrs())
        while options.beat:
            await trio.sleep(options.beat)
            await overlay.publish(os.urandom(200))
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
