"""The demo's nodes: real processes on loopback, which never outlive the demo.

Each node holds the reading end of a pipe as its stdin, and stops when that closes (`--until-stdin-closes`):
the operating system closes it however the demo ends, also when it is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from peerinfer.cli.client import NodeApi, NodeClient, NodeError, open_client
from peerinfer.cli.errors import FailedError
from peerinfer.cli.show import short

START_TIMEOUT_S = 60.0
"""From starting a process to its HTTP answering; a second when nothing else runs."""
MEET_TIMEOUT_S = 180.0
"""Until every engine is loaded and every node sees all others."""
LOOK_INTERVAL_S = 0.25
STOP_TIMEOUT_S = 2.8


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoNode:
    """One running node."""

    number: int
    """From 1."""
    peer_id: str
    addr: str
    """A multiaddr to join through."""
    model: str
    client: NodeClient

    @property
    def url(self) -> str:
        return self.client.url

    @property
    def name(self) -> str:
        return f"node {self.number}"


@asynccontextmanager
async def run_nodes(
    count: int,
    options: Sequence[str],
    *,
    directory: Path,
    say: Callable[[str], None],
    doing: Callable[[str], None],
    meet_timeout_s: float = MEET_TIMEOUT_S,
) -> AsyncIterator[list[DemoNode]]:
    """Nodes that have found each other and can all answer. Raises `FailedError` when that fails.

    `say` gets a line for each step done, `doing` what is under way; engines may load for `meet_timeout_s`.
    """
    progress = _Progress(say, doing)
    nodes: list[DemoNode] = []
    async with trio.open_nursery() as nursery:
        starter = _Starter(nursery, options, directory)

        async def start(number: int, *command: str) -> None:
            node = await starter.start(number, command)
            progress.say(f"{node.name} is up at {node.url} ({short(node.peer_id)})")
            nodes.append(node)

        doing("node 1 starts")
        await start(1, "serve")
        doing("the others start and join")

        async with trio.open_nursery() as joining:
            for number in range(2, count + 1):
                joining.start_soon(start, number, "join", nodes[0].addr)
        nodes.sort(key=lambda node: node.number)
        await _meet(nodes, progress, timeout_s=meet_timeout_s)
        yield nodes
        nursery.cancel_scope.cancel()


class _Progress:
    """Says what is done, with the time since the start, and what is under way."""

    def __init__(self, say: Callable[[str], None], doing: Callable[[str], None]) -> None:
        self._say = say
        self.doing = doing
        self._started = trio.current_time()

    def say(self, text: str) -> None:
        self._say(f"{trio.current_time() - self._started:5.1f} s  {text}")


class _Starter:
    def __init__(self, nursery: trio.Nursery, options: Sequence[str], directory: Path) -> None:
        self._nursery = nursery
        self._options = options
        self._directory = directory

    async def start(self, number: int, command: Sequence[str]) -> DemoNode:
        """A node whose HTTP answers; it is stopped when the nursery is cancelled."""
        node = await self._nursery.start(self._run, number, command)
        assert isinstance(node, DemoNode)
        return node

    async def _run(
        self,
        number: int,
        command: Sequence[str],
        task_status: trio.TaskStatus[DemoNode] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        log = self._directory / f"node{number}.log"
        with log.open("wb") as stderr:
            process = await trio.lowlevel.open_process(
                [
                    *(sys.executable, "-m", "peerinfer", *command, "--json", "--until-stdin-closes"),
                    *("--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0", "--allow-overrides"),
                    *("--data-dir", str(self._directory / f"node{number}"), *self._options),
                ],
                env={name: value for name, value in os.environ.items() if name != "PEERINFER_API_KEY"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                # Ctrl-C in a terminal goes to the whole process group; here the demo alone acts on it.
                start_new_session=True,
            )
        try:
            ready = await _ready_object(process, f"node {number}", log)
            async with open_client(NodeApi(ready["http"])) as client:
                task_status.started(
                    DemoNode(
                        number=number,
                        peer_id=ready["peer_id"],
                        addr=ready["listen"][0],
                        model=ready["model"],
                        client=client,
                    )
                )
                await process.wait()
                raise FailedError(f"node {number} ended: {_last_line(log)}")
        finally:
            await _stop(process)


async def _ready_object(process: trio.Process, name: str, log: Path) -> dict[str, Any]:
    """What a node prints once its HTTP answers."""
    assert process.stdout is not None
    line = b""
    with trio.move_on_after(START_TIMEOUT_S) as deadline:
        async for data in process.stdout:
            line += data
            if b"\n" in line:
                break
    if deadline.cancelled_caught:
        raise FailedError(f"{name} did not start within {START_TIMEOUT_S:.0f} s: {_last_line(log)}")
    if not line:
        raise FailedError(f"{name} did not start: {_last_line(log)}")
    ready: dict[str, Any] = json.loads(line)
    return ready


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


async def _stop(process: trio.Process) -> None:
    with trio.CancelScope(shield=True):
        if process.stdin is not None:
            await process.stdin.aclose()
        with trio.move_on_after(STOP_TIMEOUT_S):
            await process.wait()
            return
        process.kill()
        await process.wait()


async def _meet(nodes: Sequence[DemoNode], progress: _Progress, *, timeout_s: float) -> None:
    """Wait until every engine is loaded and every node sees all others ready."""
    others = len(nodes) - 1
    waiting = list(nodes)
    with trio.move_on_after(timeout_s):
        while waiting:
            views = {node.number: await _view(node) for node in waiting}
            for node in list(waiting):
                if views[node.number] == ("ready", others):
                    progress.say(f"{node.name} is ready and sees the other {others}")
                    waiting.remove(node)
            if waiting:
                node = waiting[0]
                state, seen = views[node.number]
                progress.doing(f"{node.name}: engine {state}, sees {seen} of {others} nodes ready")
                await trio.sleep(LOOK_INTERVAL_S)
        return
    names = ", ".join(node.name for node in waiting)
    raise FailedError(f"{names} did not get ready within {timeout_s:.0f} s")


async def _view(node: DemoNode) -> tuple[str, int]:
    """A node's engine state and how many peers it would forward to."""
    try:
        status = await node.client.get("/peerinfer/v1/status")
        peers = (await node.client.get("/peerinfer/v1/peers")).get("peers") or []
    except NodeError:
        return "not answering", 0
    return str(status.get("engine_state")), sum(peer.get("state") == "alive" for peer in peers)
