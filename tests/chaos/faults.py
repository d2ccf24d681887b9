"""What befalls the nodes, their engines and the network between them."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Coroutine

import trio

from tests.chaos.nodes import EngineProcess, Node, Nodes
from tests.chaos.tally import Tally

EVERY_S = (1.0, 5.0)
AWAY_S = (0.5, 4.0)
CUT_S = (1.0, 8.0)
"""On both sides of what it takes to miss a link: 5 s."""
CUTS_MAX = 2
LEAVING_S = 15.0

Fault = tuple[str, Callable[[], Coroutine[None, None, None]]]


async def befall(nodes: Nodes, draw: random.Random, tally: Tally) -> None:
    """One fault after the other, for ever, and several at a time; one node is whole at any time."""
    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep(draw.uniform(*EVERY_S))
            possible = [fault for one in (_of_nodes, _of_engines, _of_links) for fault in one(nodes, draw)]
            if possible:
                kind, fault = draw.choice(possible)
                tally.faults[kind] += 1
                nursery.start_soon(fault)


def _of_nodes(nodes: Nodes, draw: random.Random) -> list[Fault]:
    whole = [node for node in nodes.all if node.whole]
    if len(whole) < 2:
        return []
    node, away_s = draw.choice(whole), draw.uniform(*AWAY_S)
    return [
        ("nodes killed", lambda: _killed(nodes, node, away_s)),
        ("nodes frozen", lambda: _frozen(node, away_s)),
        draw.choice(
            [
                ("nodes killed", lambda: _killed(nodes, node, away_s)),
                ("nodes frozen", lambda: _frozen(node, away_s)),
                ("nodes left", lambda: _left(nodes, node, away_s)),
            ]
        ),
    ]


def _of_engines(nodes: Nodes, draw: random.Random) -> list[Fault]:
    """Also of nodes that something has befallen already."""
    engines = [
        node.engine
        for node in nodes.all
        if node.engine is not None
        and node.engine.alive
        and any(other.whole for other in nodes.all if other is not node)
    ]
    if not engines:
        return []
    engine, away_s = draw.choice(engines), draw.uniform(*AWAY_S)
    return [("engines killed", lambda: _engine_killed(engine, away_s))] * 2


def _of_links(nodes: Nodes, draw: random.Random) -> list[Fault]:
    names = [node.name for node in nodes.all]
    pairs = [(a, b) for a in names for b in names if a < b]
    if sum(nodes.cuts.between(a, b) for a, b in pairs) >= CUTS_MAX:
        return []
    a, b = draw.sample(draw.choice([pair for pair in pairs if not nodes.cuts.between(*pair)]), 2)
    for_s, cuts = draw.uniform(*CUT_S), nodes.cuts
    one_way = draw.random() < 0.5
    name = "links silent one way" if one_way else "links silent"
    return [
        ("links severed", lambda: cuts.sever(a, b, for_s=for_s)),
        (name, lambda: cuts.silence(a, b, for_s=for_s, one_way=one_way)),
    ]


async def _frozen(node: Node, away_s: float) -> None:
    node.frozen = True
    node.process.signal(signal.SIGSTOP)
    try:
        await trio.sleep(away_s)
    finally:
        node.process.signal(signal.SIGCONT)
        node.frozen = False


async def _killed(nodes: Nodes, node: Node, away_s: float) -> None:
    node.kill()
    await trio.sleep(away_s)
    await nodes.restart(node)


async def _left(nodes: Nodes, node: Node, away_s: float) -> None:
    node.ending = True
    node.process.signal(signal.SIGTERM)
    with trio.move_on_after(LEAVING_S):
        await trio.to_thread.run_sync(node.process.process.wait, abandon_on_cancel=True)
    await _killed(nodes, node, away_s)


async def _engine_killed(engine: EngineProcess, away_s: float) -> None:
    await trio.to_thread.run_sync(engine.kill)
    await trio.sleep(away_s)
    await trio.to_thread.run_sync(engine.start)
