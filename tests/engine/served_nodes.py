"""Nodes on servers, and a client of the first one's HTTP face: alone, or two that forward to each other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import trio

from peerinfer.api.server import serve_http
from peerinfer.config import Config, EngineConfig, HttpConfig
from peerinfer.core.fingerprint import fingerprint, topic
from peerinfer.core.types import PeerId
from peerinfer.engine.sglang_build import build_attached
from peerinfer.node.node import Node
from peerinfer.sim.network import Conditions, SimNetwork
from tests.api.test_real_node import AloneOverlay


@asynccontextmanager
async def alone(url: str, **engine: object) -> AsyncIterator[tuple[httpx.AsyncClient, Node]]:
    """A node that serves through the server at `url`, and is ready."""
    config = replace(EngineConfig(kind="sglang", url=url), **engine)  # type: ignore[arg-type]
    built, tokenizer = await build_attached(config)
    node = Node(
        overlay=AloneOverlay(),
        engine=built,
        tokenizer=tokenizer,
        config=Config(engine=config),
        next_incarnation=lambda above: above + 1,
    )
    async with node.run(), trio.open_nursery() as nursery:
        http = HttpConfig(port=0, port_is_default=False)
        base = await nursery.start(serve_http, node, http)
        async with httpx.AsyncClient(base_url=base, timeout=120, trust_env=False) as client:
            await until(lambda: node.ready)
            yield client, node
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def pair(*urls: str) -> AsyncIterator[tuple[httpx.AsyncClient, list[Node]]]:
    """A swarm of one node per server, and a client of the first one, which may choose the target."""
    network = SimNetwork(conditions=Conditions(delay_s=0.001))
    nodes: list[Node] = []
    async with trio.open_nursery() as nursery:
        for number, url in enumerate(urls):
            config = EngineConfig(kind="sglang", url=url)
            built, tokenizer = await build_attached(config)
            overlay = network.overlay(
                PeerId(f"node-{number}"),
                join=nodes[0].addrs() if nodes else (),
                topic=topic(fingerprint(built.info.fingerprint_fields)),
            )
            node = Node(
                overlay=overlay,
                engine=built,
                tokenizer=tokenizer,
                config=Config(engine=config),
                next_incarnation=lambda above: above + 1,
            )
            await nursery.start(_run, node)
            nodes.append(node)
        http = HttpConfig(port=0, port_is_default=False, allow_overrides=True)
        base = await nursery.start(serve_http, nodes[0], http)
        async with httpx.AsyncClient(base_url=base, timeout=120, trust_env=False) as client:
            await until(lambda: _all_alive(nodes))
            yield client, nodes
        nursery.cancel_scope.cancel()


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what must soon be so."""
    with trio.fail_after(60):
        while not holds():
            await trio.sleep(0.01)


def _all_alive(nodes: list[Node]) -> bool:
    def alive(node: Node) -> int:
        peers = node.peers()["peers"]
        assert isinstance(peers, list)
        return sum(peer["state"] == "alive" for peer in peers)

    return all(node.ready and alive(node) == len(nodes) - 1 for node in nodes)


async def _run(node: Node, *, task_status: trio.TaskStatus[None]) -> None:
    async with node.run():
        task_status.started()
        await trio.sleep_forever()
