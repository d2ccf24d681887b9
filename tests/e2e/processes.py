"""Real `peerinfer` processes for the end-to-end tests: started on port 0, killed without mercy at the end."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

STARTUP_S = 60.0
"""Generous: these machines are small and shared."""


class PeerProcess:
    """One `peerinfer serve`, `peerinfer join` or `peerinfer bootstrap` child."""

    def __init__(
        self,
        data_dir: Path,
        *,
        join: str | None = None,
        args: tuple[str, ...] = (),
        listen: str = "/ip4/127.0.0.1/tcp/0",
        bootstrap: bool = False,
        within: Sequence[str] = (),
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`within` is a command that runs what follows it elsewhere; `transport` reaches HTTP there."""
        self.data_dir = data_dir
        command = [*within, sys.executable, "-m", "peerinfer"]
        command += ["bootstrap"] if bootstrap else ["join", join] if join else ["serve"]
        command += ["--json", "--listen", listen, *(() if bootstrap else ("--http", "127.0.0.1:0"))]
        command += ["--data-dir", str(data_dir), *args]
        data_dir.mkdir(parents=True, exist_ok=True)
        self.log = data_dir / "stderr.log"
        self._stderr = self.log.open("ab")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._stderr, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        self.ready = self._read_ready_line()
        self.peer_id: str = self.ready["peer_id"]
        self.http: str = self.ready["http"] or ""
        self.addr: str = self.ready["listen"][0]
        self.client = httpx.Client(base_url=self.http, timeout=60.0, transport=transport)

    def _read_ready_line(self) -> dict[str, Any]:
        lines: queue.Queue[bytes] = queue.Queue()
        stdout = self.process.stdout
        assert stdout is not None
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=STARTUP_S)
        except queue.Empty:
            line = b""
        if not line.strip():
            self.kill()
            raise AssertionError(f"the node did not start:\n{self.log.read_text()}")
        return json.loads(line)  # type: ignore[no-any-return]

    def json(self, path: str) -> dict[str, Any]:
        """The body of `/peerinfer/v1/<path>`."""
        answer = self.client.get(f"/peerinfer/v1/{path}")
        answer.raise_for_status()
        return answer.json()  # type: ignore[no-any-return]

    def peers(self) -> dict[str, dict[str, Any]]:
        """The peers this node knows, by id."""
        return {peer["peer_id"]: peer for peer in self.json("peers")["peers"]}

    def alive_peers(self) -> set[str]:
        return {peer_id for peer_id, peer in self.peers().items() if peer["state"] == "alive"}

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._stderr.close()
        if self.process.stdout:
            self.process.stdout.close()


def wait_until(condition: Callable[[], bool], *, within_s: float, what: str) -> float:
    """Poll until true; the seconds it took. Fails with `what` when it does not come true."""
    started = time.monotonic()
    while time.monotonic() - started < within_s:
        if condition():
            return time.monotonic() - started
        time.sleep(0.05)  # polls real processes: there is nothing to wait on
    raise AssertionError(f"not within {within_s} s: {what}")


def simulated(tmp_path: Path, *args: str, prefill_tokens_per_s: float = 480.0) -> tuple[str, ...]:
    """The arguments of a node with the simulated engine, at a speed that fits the test."""
    config = tmp_path / "simulated.toml"
    config.write_text(
        f'[engine]\nkind = "simulated"\nsimulated_prefill_tokens_per_s = {prefill_tokens_per_s}\n'
    )
    return ("--config", str(config), *args)


@contextmanager
def swarm(
    tmp_path: Path, size: int, *, args: tuple[str, ...] = (), meet_within_s: float = 30
) -> Iterator[list[PeerProcess]]:
    """`size` nodes that all see each other as alive; more may be appended to the list, all are killed."""
    nodes: list[PeerProcess] = []
    try:
        nodes.append(PeerProcess(tmp_path / "node0", args=args))
        for number in range(1, size):
            nodes.append(PeerProcess(tmp_path / f"node{number}", join=nodes[0].addr, args=args))
        for node in nodes:
            others = {other.peer_id for other in nodes} - {node.peer_id}
            wait_until(
                lambda n=node, o=others: o <= n.alive_peers(), within_s=meet_within_s, what="a full mesh"
            )  # type: ignore[misc]
        yield nodes
    finally:
        for node in nodes:
            node.kill()
