"""What a swarm's talk costs a node: CPU and bytes per second, by the number of nodes, busy and idle.

    python -m benchmarks.gossip [--nodes 4 16] [--seconds 20] [--messages-per-s 40] [--json FILE]

Nodes with the simulated engine, all in one swarm on this machine. While they are busy each is asked for a
new prompt five times a second, so that every tree changes in every round; the cost of serving the same
requests is measured on a node that is alone, and taken off. Bytes are those of the node's TCP connections to
its peers. Intervals stretch so that all nodes together publish `--messages-per-s` at most; where the swarm is
too large for the machine at 40, what a message costs shows between two lower limits.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.kit.client import Client
from benchmarks.kit.processes import Process, Processes, alive, free_port, processes
from benchmarks.kit.report import header, table, write_json

ASKED_PER_S = 5.0
PROMPT_CHARS = 400
SETTLE_S = 8.0
"""After all know all: the last questions for peers are asked, and answered."""
KNOWN_WITHIN_S = 300.0
CONFIG = """
[engine]
kind = "simulated"
cache_tokens = 262144
slots = 8
simulated_prefill_tokens_per_s = 1000000.0
simulated_decode_tokens_per_s = 10000.0
simulated_overhead_s = 0.001

[anti_entropy]
messages_per_s_max = {messages_per_s}
"""
_RECEIVED = re.compile(r"bytes_received:(\d+)")
_SENT = re.compile(r"bytes_acked:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Per node, the median of all."""

    nodes: int
    messages_per_s_max: float
    idle_cpu_percent: float
    busy_cpu_percent: float
    """Of one core, less that of a node that is asked the same and is alone."""
    idle_kb_per_s: float
    busy_kb_per_s: float


def start(starter: Processes, count: int, *, messages_per_s: float) -> list[Process]:
    """A swarm of so many nodes, once all know all."""
    config = starter.directory / "node.toml"
    config.write_text(CONFIG.format(messages_per_s=messages_per_s), encoding="utf-8")
    nodes: list[Process] = []
    for _ in range(count):
        port = free_port()
        join = [str(addr) for addr in _listen(nodes[0])] if nodes else []
        command = [sys.executable, "-m", "peerinfer", "join" if join else "serve", *join[:1], "--json"]
        command += ["--config", str(config), "--listen", "/ip4/127.0.0.1/tcp/0"]
        command += ["--http", f"127.0.0.1:{port}", "--data-dir", str(starter.directory / str(port))]
        node = starter.start(command, name=f"node-{port}", url=f"http://127.0.0.1:{port}")
        assert node.popen.stdout is not None
        node.ready = json.loads(node.popen.stdout.readline())
        nodes.append(node)
    end = time.monotonic() + KNOWN_WITHIN_S
    while any(alive(node) < count - 1 for node in nodes):
        if time.monotonic() > end:
            raise TimeoutError(f"{count} nodes do not all know each other after {KNOWN_WITHIN_S:.0f} s")
        time.sleep(0.5)
    time.sleep(SETTLE_S)
    return nodes


async def ask(nodes: Sequence[Process], seconds: float) -> None:
    """Keep every node busy with prompts that are new."""

    async def keep_busy(node: Process, number: int) -> None:
        client = Client(node.url)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for turn in range(round(seconds * ASKED_PER_S)):
            await asyncio.sleep(max(0.0, begun + turn / ASKED_PER_S - loop.time()))
            text = f"{number}/{turn} " * (PROMPT_CHARS // 8)
            body = {"model": "simulated", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
            answer = await client.ask(json.dumps(body).encode())
            if answer.error:
                raise RuntimeError(f"{node.name}: {answer.error}")
        client.close()

    await asyncio.gather(*(keep_busy(node, number) for number, node in enumerate(nodes)))


def measured(nodes: Sequence[Process], seconds: float, *, busy: bool) -> tuple[float, float]:
    """CPU in per cent of a core and kB/s, the median of the nodes."""
    cpu, sent = [node.cpu_s for node in nodes], wire_bytes(nodes)
    begun = time.monotonic()
    if busy:
        asyncio.run(ask(nodes, seconds))
    else:
        time.sleep(seconds)
    took = time.monotonic() - begun
    used = [(node.cpu_s - before) / took * 100 for node, before in zip(nodes, cpu, strict=True)]
    moved = (wire_bytes(nodes) - sent) / took / len(nodes) / 1e3
    return statistics.median(used), moved


def wire_bytes(nodes: Sequence[Process]) -> float:
    """What all nodes have sent and received from each other, as the kernel counts."""
    ports = {str(_listen(node)[0]).split("/")[4] for node in nodes}
    listed = subprocess.run(["ss", "-tniH", "state", "established"], capture_output=True, text=True).stdout
    total = 0
    lines = listed.splitlines()
    for head, details in zip(lines[::2], lines[1::2], strict=False):
        if any(f":{port} " in f"{head} " for port in ports):
            for pattern in (_RECEIVED, _SENT):
                total += sum(int(number) for number in pattern.findall(details))
    return float(total)


def numbers(cost: Cost) -> tuple[float, ...]:
    """In the order of the table."""
    return (cost.idle_cpu_percent, cost.busy_cpu_percent, cost.idle_kb_per_s, cost.busy_kb_per_s)


def _listen(node: Process) -> list[object]:
    addrs = node.ready["listen"]
    assert isinstance(addrs, list)
    return addrs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--messages-per-s", nargs="+", type=float, default=[40.0], help="one or several limits"
    )
    parser.add_argument("--json", type=Path, help="where the raw numbers go")
    options = parser.parse_args()
    facts = header()
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as directory, processes(Path(directory)) as starter:
        (lone,) = start(starter, 1, messages_per_s=max(options.messages_per_s))
        alone, _ = measured([lone], options.seconds, busy=True)
    for count, messages_per_s in itertools.product(options.nodes, options.messages_per_s):
        with tempfile.TemporaryDirectory() as directory, processes(Path(directory)) as starter:
            nodes = start(starter, count, messages_per_s=messages_per_s)
            idle_cpu, idle_kb = measured(nodes, options.seconds, busy=False)
            busy_cpu, busy_kb = measured(nodes, options.seconds, busy=True)
        costs.append(
            Cost(
                nodes=count,
                messages_per_s_max=messages_per_s,
                idle_cpu_percent=idle_cpu,
                busy_cpu_percent=busy_cpu - alone,
                idle_kb_per_s=idle_kb,
                busy_kb_per_s=busy_kb,
            )
        )
    rows = [
        [str(each.nodes), f"{each.messages_per_s_max:g}", *(f"{value:.1f}" for value in numbers(each))]
        for each in costs
    ]
    columns = [
        "nodes",
        "messages/s at most",
        "idle: % of a core",
        "busy: % of a core",
        "idle: kB/s",
        "busy: kB/s",
    ]
    table(f"Per node; serving alone costs {alone:.1f} % of a core", columns, rows)
    write_json(options.json, facts, [asdict(cost) for cost in costs])


if __name__ == "__main__":
    main()
