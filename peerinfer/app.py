"""The composition root: one peer with its adapters, its HTTP face up, and everything owned by a block.

async with run_peer(Config(), data_dir=Path("here")) as peer:
    print(peer.http_url, peer.addrs)
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from peerinfer.api.server import open_listener, serve_http
from peerinfer.config import Config
from peerinfer.core.fingerprint import fingerprint, swarm_fields, topic
from peerinfer.core.frame_codec import FRAME_OVERHEAD_BYTES_MAX
from peerinfer.core.swarm_key import SwarmKey
from peerinfer.engine.choose import build_engine
from peerinfer.node.incarnation import stored_incarnations
from peerinfer.node.node import Node
from peerinfer.node.ports import Overlay
from peerinfer.overlay.delayed import DelayedOverlay
from peerinfer.overlay.libp2p import LibP2POverlay


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A node that runs."""

    node: Node
    http_url: str
    """Where clients on this machine reach it, e.g. `http://127.0.0.1:8000`."""

    @property
    def addrs(self) -> tuple[str, ...]:
        """Multiaddrs under which others can join through it."""
        return self.node.addrs()


@asynccontextmanager
async def run_peer(
    config: Config,
    *,
    data_dir: Path,
    listening: socket.socket | None = None,
    swarm_key: SwarmKey | None = None,
) -> AsyncIterator[Peer]:
    """Run one peer until the block is left. Entering returns once HTTP answers; engine and peers may follow.

    `data_dir` keeps the identity and the incarnation; one process at a time may use it (the caller locks
    it). `listening` is the socket of the HTTP face, for callers that had to know its port first. Without a
    `swarm_key` whoever reaches the node can join.

    Raises:
        ListenError: the HTTP port is taken. AddressError: an overlay address is taken or no multiaddr.
        EngineError: there is no such engine or model here.
    """
    engine, tokenizer = await build_engine(config.engine, data_dir=data_dir)
    overlay: Overlay = LibP2POverlay(
        data_dir=data_dir,
        config=config.overlay,
        topic=topic(fingerprint(swarm_fields(engine.info.fingerprint_fields, swarm_key))),
        frame_bytes_max=config.http.body_bytes_max + FRAME_OVERHEAD_BYTES_MAX,
        swarm_key=swarm_key,
    )
    if config.overlay.network_delay_s > 0:
        overlay = DelayedOverlay(
            overlay, delay_s=config.overlay.network_delay_s, jitter_s=config.overlay.network_jitter_s
        )
    node = Node(
        overlay=overlay,
        engine=engine,
        tokenizer=tokenizer,
        config=config,
        next_incarnation=stored_incarnations(data_dir / "incarnation"),
        swarm_key=swarm_key,
    )
    listening = listening or open_listener(config.http)
    with listening:
        async with node.run(), trio.open_nursery() as nursery:
            url = await nursery.start(_serve, node, config, listening)
            yield Peer(node=node, http_url=url)
            nursery.cancel_scope.cancel()


async def _serve(
    node: Node, config: Config, listening: socket.socket, *, task_status: trio.TaskStatus[str]
) -> None:
    await serve_http(node, config.http, listening=listening, task_status=task_status)
