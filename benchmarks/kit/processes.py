"""Workers, nodes, central routers and proxies as processes of their own; they end with the block.

A process's CPU time is read from its scheduler statistics, in nanoseconds, all its threads together.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Process:
    """A process that runs."""

    popen: subprocess.Popen[str]
    url: str
    name: str = ""
    ready: dict[str, object] = field(default_factory=dict)
    """What a node printed when it was ready."""

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far."""
        tasks = Path(f"/proc/{self.popen.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    @property
    def rss_bytes(self) -> int:
        """Memory that is resident."""
        pages = int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Processes:
    """Starts them, and ends what it has started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        """For models, data directories and logs."""
        self.repository = REPOSITORY
        """Whose code is run: this one's, or another checkout's beside it."""
        self._started: list[Process] = []

    def start(self, command: Sequence[str], *, name: str, url: str = "") -> Process:
        """Start a command; its standard error goes to a log of its name."""
        log = (self.directory / f"{name}.log").open("w")
        # Safe: without the working directory, which is a checkout, too.
        environment = {**os.environ, "PYTHONPATH": str(self.repository.resolve()), "PYTHONSAFEPATH": "1"}
        popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        process = Process(popen, url, name)
        self._started.append(process)
        return process

    def worker(self, model: Path, *options: str, port: int | None = None) -> Process:
        """An engine without a model, once it listens."""
        port = port or free_port()
        command = [sys.executable, "-m", "benchmarks.kit.worker", "--model", str(model), "--port", str(port)]
        url = f"http://127.0.0.1:{port}"
        process = self.start([*command, *options], name=f"worker-{port}", url=url)
        _line(process)
        return process

    def node(self, worker: Process, *options: str, join: Sequence[Process] = ()) -> Process:
        """A peerinfer node in front of a worker, once its engine is ready."""
        port = free_port()
        addrs = [str(addr) for peer in join for addr in _list(peer.ready["listen"])[:1]]
        command = [sys.executable, "-m", "peerinfer", "join" if join else "serve", *addrs]
        command += ["--engine-url", worker.url, "--listen", "/ip4/127.0.0.1/tcp/0", "--json"]
        command += ["--http", f"127.0.0.1:{port}", "--data-dir", str(self.directory / f"node-{port}")]
        process = self.start([*command, *options], name=f"node-{port}", url=f"http://127.0.0.1:{port}")
        process.ready = json.loads(_line(process))
        wait_for(f"{process.url}/readyz")
        return process

    def stop(self, process: Process, *, how: int = signal.SIGTERM) -> None:
        """End one, and wait for it."""
        if process.popen.poll() is None:
            process.popen.send_signal(how)
        try:
            process.popen.wait(8)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()
        if process in self._started:
            self._started.remove(process)

    def stop_all(self) -> None:
        """End all, the last one first."""
        for process in self._started:
            if process.popen.poll() is None:
                process.popen.terminate()
        for process in reversed(tuple(self._started)):
            self.stop(process)


@contextmanager
def processes(directory: Path) -> Iterator[Processes]:
    """A starter whose processes end with the block."""
    directory.mkdir(parents=True, exist_ok=True)
    starter = Processes(directory)
    try:
        yield starter
    finally:
        starter.stop_all()


def swarm(starter: Processes, workers: Sequence[Process], *options: str) -> list[Process]:
    """A node for each worker, once every one knows all the others."""
    nodes = [starter.node(workers[0], *options)]
    nodes += [starter.node(worker, *options, join=nodes[:1]) for worker in workers[1:]]
    for node in nodes:
        _until(lambda node=node: alive(node) >= len(workers) - 1, f"{node.name} to know its peers")
    return nodes


def alive(node: Process) -> int:
    """How many peers a node holds for alive."""
    peers = get_json(f"{node.url}/peerinfer/v1/peers")["peers"]
    return sum(peer["state"] == "alive" for peer in _list(peers))


def get_json(url: str) -> dict[str, object]:
    """The JSON behind a URL."""
    with urllib.request.urlopen(url, timeout=10) as response:
        answer: dict[str, object] = json.loads(response.read())
        return answer


def wait_for(url: str, *, within_s: float = 90.0) -> None:
    """Until a URL answers 200."""
    _until(lambda: _answers(url), url, within_s=within_s)


def free_port() -> int:
    """A port that nobody listens on, below those that the system gives to clients."""
    for port in range(20_000 + os.getpid() * 37 % 10_000, 32_000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in _given:
                _given.add(port)
                return port
    raise OSError("no port is free")


_given: set[int] = set()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _until(holds: object, what: str, *, within_s: float = 90.0) -> None:
    assert callable(holds)
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {within_s:.0f} s for {what}")
        time.sleep(0.1)


def _line(process: Process) -> str:
    assert process.popen.stdout is not None
    line = process.popen.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.name} ended before it was ready; see its log")
    return line


def _list(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value
