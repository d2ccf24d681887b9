"""What a swarm's talk costs a node: CPU and bytes per second, by the number of nodes, busy and idle.

    python -m benchmarks.gossip [--nodes 4 16] [--light 0] [--seconds 20] [--messages-per-s 40] [--json FILE]

Nodes with the simulated engine, all in one swarm on this machine. While they are busy each is asked for a
new prompt five times a second, so that every tree changes in every round; the cost of serving the same
requests is measured on a node that is alone, and taken off. Bytes are those of the node's TCP connections to
its peers. Intervals stretch so that all nodes together publish `--messages-per-s` at most; where the swarm is
too large for the machine at 40, what a message costs shows between two lower limits.

`--light` adds so many nodes that are not measured and share one process (kit/light_nodes.py). They are linked
with the others only, so they cost the machine little, and each of the others as much as whole ones would.
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
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

from benchmarks.kit.client import Client
from benchmarks.kit.gossip_load import ASKED_PER_S, CONFIG, question
from benchmarks.kit.processes import Process, Processes, alive, free_port, get_json, processes
from benchmarks.kit.report import header, table, write_json

SETTLE_S = 8.0
SETTLE_S_PER_NODE = 0.5
"""After all know all: new links are asked five times, at a limited rate for all together."""
KNOWN_WITHIN_S = 300.0
_MOVED = re.compile(r"bytes_(?:received|acked):(\d+)")
COLUMNS = (
    "nodes",
    "messages/s at most",
    "all know all after s",
    "idle: % of a core",
    "kB/s",
    "messages/s of all",
    "busy: % of a core",
    "kB/s",
    "messages/s of all",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """What it took over some seconds: per whole node, the median of all."""

    cpu_percent: float
    """Of one core."""
    kb_per_s: float
    messages_per_s: float
    """Of all nodes together, as far as one has heard them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A swarm's, idle and busy."""

    whole: int
    light: int
    messages_per_s_max: float
    known_after_s: float
    """Since the first began to start, all know all."""
    idle: Talk
    busy: Talk
    """Less what a node takes that is asked the same and is alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """Nodes that run and know each other."""

    whole: list[Process]
    light: Process | None
    known_after_s: float

    def tell_light(self, what: str) -> None:
        """To be `busy` or `idle`."""
        if self.light is not None:
            assert self.light.popen.stdin is not None
            self.light.popen.stdin.write(f"{what}\n")
            self.light.popen.stdin.flush()


def start(starter: Processes, *, whole: int, light: int, messages_per_s: float) -> Swarm:
    """A swarm of so many nodes, once all know all."""
    began = time.monotonic()
    config = starter.directory / "node.toml"
    config.write_text(CONFIG.format(messages_per_s=messages_per_s), encoding="utf-8")
    nodes: list[Process] = []
    for _ in range(whole):
        port = free_port()
        join = _addrs(nodes[:1])
        command = [sys.executable, "-m", "peerinfer", "join" if join else "serve", *join, "--json"]
        command += ["--config", str(config), "--listen", "/ip4/127.0.0.1/tcp/0"]
        command += ["--http", f"127.0.0.1:{port}", "--data-dir", str(starter.directory / str(port))]
        node = starter.start(command, name=f"node-{port}", url=f"http://127.0.0.1:{port}")
        node.ready = json.loads(_line(node))
        nodes.append(node)
    pretender = None
    if light:
        command = [sys.executable, "-m", "benchmarks.kit.light_nodes", "--config", str(config)]
        command += ["--count", str(light), "--nodes", str(whole + light), "--peers", *_addrs(nodes)]
        pretender = starter.start(command, name="light-nodes")
        _line(pretender)
    while any(alive(node) < whole + light - 1 for node in nodes):
        if time.monotonic() > began + KNOWN_WITHIN_S:
            raise TimeoutError(f"{whole + light} nodes do not all know each other by then")
        time.sleep(0.5)
    known_after_s = time.monotonic() - began
    time.sleep(SETTLE_S + SETTLE_S_PER_NODE * (whole + light))
    return Swarm(whole=nodes, light=pretender, known_after_s=known_after_s)


async def ask(nodes: Sequence[Process], seconds: float) -> None:
    """Keep every node busy with prompts that are new."""

    async def keep_busy(node: Process, number: int) -> None:
        client = Client(node.url)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for turn in range(round(seconds * ASKED_PER_S)):
            await asyncio.sleep(max(0.0, begun + turn / ASKED_PER_S - loop.time()))
            answer = await client.ask(json.dumps(question(number, turn)).encode())
            if answer.error:
                raise RuntimeError(f"{node.name}: {answer.error}")
        client.close()

    await asyncio.gather(*(keep_busy(node, number) for number, node in enumerate(nodes)))


def measured(swarm: Swarm, seconds: float, *, busy: bool) -> Talk:
    """What the whole nodes take in so many seconds."""
    nodes = swarm.whole
    cpu, moved, told = [node.cpu_s for node in nodes], wire_bytes(nodes), messages(nodes[0])
    begun = time.monotonic()
    if busy:
        swarm.tell_light("busy")
        asyncio.run(ask(nodes, seconds))
        swarm.tell_light("idle")
    else:
        time.sleep(seconds)
    took = time.monotonic() - begun
    used = [(node.cpu_s - before) / took * 100 for node, before in zip(nodes, cpu, strict=True)]
    others = max(1, len(told))  # one hears of all but itself
    return Talk(
        cpu_percent=statistics.median(used),
        kb_per_s=(wire_bytes(nodes) - moved) / took / len(nodes) / 1e3,
        messages_per_s=sum(seq - told.get(peer, seq) for peer, seq in messages(nodes[0]).items())
        / took
        * (1 + others)
        / others,
    )


def messages(node: Process) -> dict[str, int]:
    """The number of the last message that a node has of each peer."""
    peers = get_json(f"{node.url}/peerinfer/v1/peers")["peers"]
    assert isinstance(peers, list)
    return {str(peer["peer_id"]): int(peer["seq"]) for peer in peers}


def wire_bytes(nodes: Sequence[Process]) -> float:
    """What these nodes have sent to peers and received from them, as the kernel counts."""
    listed = subprocess.run(["ss", "-tniHpO", "state", "established"], capture_output=True, text=True).stdout
    total = 0
    for line in listed.splitlines():
        for node in nodes:
            if f"pid={node.popen.pid}," in line and f":{node.url.rsplit(':', 1)[1]} " not in line:
                total += sum(map(int, _MOVED.findall(line)))
    return float(total)


def _addrs(nodes: Sequence[Process]) -> list[str]:
    """Where each of them can be reached."""
    listen = [node.ready["listen"] for node in nodes]
    return [str(addrs[0]) for addrs in listen if isinstance(addrs, list)]


def _line(process: Process) -> str:
    """What a process prints first, when it is ready."""
    assert process.popen.stdout is not None
    line = process.popen.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.name} ended before it was ready")
    return line


def run(options: argparse.Namespace, *, whole: int, messages_per_s: float, alone: float) -> Cost:
    """Start a swarm, measure it and end it."""
    with tempfile.TemporaryDirectory() as directory, processes(Path(directory)) as starter:
        swarm = start(starter, whole=whole, light=options.light, messages_per_s=messages_per_s)
        idle = measured(swarm, options.seconds, busy=False)
        busy = measured(swarm, options.seconds, busy=True)
    return Cost(
        whole=whole,
        light=options.light,
        messages_per_s_max=messages_per_s,
        known_after_s=swarm.known_after_s,
        idle=idle,
        busy=replace(busy, cpu_percent=busy.cpu_percent - alone),
    )


def row(cost: Cost) -> list[str]:
    """In the order of COLUMNS."""
    swarm = f"{cost.whole} + {cost.light} light" if cost.light else str(cost.whole)
    numbers = (cost.known_after_s, *(value for talk in (cost.idle, cost.busy) for value in astuple(talk)))
    return [swarm, f"{cost.messages_per_s_max:g}", *(f"{value:.1f}" for value in numbers)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", nargs="+", type=int, default=[4, 16], help="whole ones")
    parser.add_argument("--light", type=int, default=0, help="so many light ones besides")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--messages-per-s", nargs="+", type=float, default=[40.0], help="one or several limits"
    )
    parser.add_argument("--json", type=Path, help="where the raw numbers go")
    options = parser.parse_args()
    facts = header()
    with tempfile.TemporaryDirectory() as directory, processes(Path(directory)) as starter:
        lone = start(starter, whole=1, light=0, messages_per_s=max(options.messages_per_s))
        alone = measured(lone, options.seconds, busy=True).cpu_percent
    costs = [
        run(options, whole=whole, messages_per_s=messages_per_s, alone=alone)
        for whole, messages_per_s in itertools.product(options.nodes, options.messages_per_s)
    ]
    title = f"Per node; serving alone costs {alone:.1f} % of a core"
    table(title, COLUMNS, [row(cost) for cost in costs])
    write_json(options.json, facts, [asdict(cost) for cost in costs])


if __name__ == "__main__":
    main()
