"""One cell with real nodes: processes with real engines on this machine, real libp2p, Δ_comm injected.

The delay is injected in each node's overlay, as the paper did it; requests go one at a time over HTTP, with
the same token ids as in the simulation. Where the time went is told by the nodes' own decisions: the serving
node's duration is the engine's, what the entry node's has beyond it is the network's, and what the client
saw beyond that is processing. Trees take what the simulation reckons with: too little to be seen.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from peerinfer.cli.client import Answer, NodeError
from peerinfer.cli.demo_nodes import DemoNode, run_nodes
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.record import Record, Row
from peerinfer.sim.spec import Costs
from peerinfer.sim.workloads.workload import Arrival, Workload

CONTEXT_TOKENS = 4096
"""MMLU's longest prompt has 3,145 tokens."""
LOAD_TIMEOUT_S = 900.0
"""Four SGLang servers that start at once on two busy cores take minutes."""
WARM_UP = range(97, 129)
"""Each node's first request loads and measures things: it is not counted."""


@asynccontextmanager
async def open_nodes(
    cell: Cell, *, options: Sequence[str], say: Callable[[str], None]
) -> AsyncIterator[list[DemoNode]]:
    """The nodes of a cell, all ready and warm. Raises `FailedError` when they do not get there."""
    with tempfile.TemporaryDirectory(prefix="peerinfer-experiment-") as name:
        directory = Path(name)
        config = directory / "experiment.toml"
        config.write_text(node_config(cell))
        arguments = ["--engine", cell.mode, "--config", str(config), *options]
        async with run_nodes(
            cell.workload.nodes,
            arguments,
            directory=directory,
            say=lambda _: None,
            doing=say,
            meet_timeout_s=LOAD_TIMEOUT_S,
        ) as nodes:
            for node in nodes:
                await node.client.complete(WARM_UP, model=node.model, max_tokens=2, policy="local")
            yield nodes


def node_config(cell: Cell) -> str:
    """What all nodes of a cell are told, as a file for `--config`."""
    tables: dict[str, dict[str, object]] = {
        "routing": {"policy": cell.policy},
        "anti_entropy": {"poll_interval_s": cell.poll_interval_s},
        "overlay": {"network_delay_s": cell.network_delay_s, "network_jitter_s": cell.jitter_s},
        "engine": {
            "page_size": cell.page_size,
            "cache_tokens": cell.cache_tokens,
            "context_tokens": CONTEXT_TOKENS,
            "slots": 1,
        },
    }
    lines = []
    for table, values in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


async def measure(
    cell: Cell,
    workload: Workload,
    *,
    options: Sequence[str],
    say: Callable[[str], None],
    tick: Callable[[], None],
) -> Record:
    """Walk through a workload, one request at a time; `tick` hears of every one that is over."""
    started = time.perf_counter()
    rows = []
    async with open_nodes(cell, options=options, say=say) as nodes:
        for arrival in workload.arrivals():
            rows.append(await _ask(cell, nodes, arrival))
            tick()
    return Record(workload.topics, len(nodes), tuple(rows), time.perf_counter() - started)


async def _ask(cell: Cell, nodes: Sequence[DemoNode], arrival: Arrival) -> Row:
    assert arrival.at_s is None, "real nodes are asked one request at a time"
    entry = nodes[arrival.entry]
    try:
        answer = await entry.client.complete(arrival.tokens, model=entry.model, max_tokens=arrival.max_tokens)
        served_by = next(index for index, node in enumerate(nodes) if node.peer_id == answer.served_by)
        entry_s = await duration_s(entry, answer)
        serving_s = await duration_s(nodes[served_by], answer)
    except NodeError:
        return Row(arrival.topic, arrival.entry, -1, len(arrival.tokens), *(0,) * (len(Row._fields) - 4))
    trees_s = Costs().trees_s(len(arrival.tokens) // cell.page_size)
    return Row(
        topic=arrival.topic,
        entry=arrival.entry,
        served_by=served_by,
        prompt_tokens=len(arrival.tokens),
        expected_cached_tokens=answer.expected_cached_tokens or 0,
        cached_tokens=answer.cached_tokens or 0,
        latency_us=_us(answer.duration_s),
        ttft_us=_us(answer.duration_s),
        engine_us=_us(serving_s - trees_s),
        trees_us=_us(trees_s),
        processing_us=_us(answer.duration_s - entry_s),
        network_us=_us(entry_s - serving_s),
    )


async def duration_s(node: DemoNode, answer: Answer) -> float:
    """How long a request took by a node's own account."""
    decision = await node.client.get(f"/peerinfer/v1/requests/{answer.request_id}")
    return float(decision["duration_s"])


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
