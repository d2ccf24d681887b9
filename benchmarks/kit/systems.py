"""The systems that are compared: peerinfer's nodes, central routers, and round-robin without a router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kit.processes import Process, Processes, free_port, swarm, wait_for

SYSTEMS = ("peerinfer", "sglang-router", "smg", "round-robin")
POLICY = "cache_aware"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A system that runs, in front of its engines."""

    urls: tuple[str, ...]
    """Where clients ask: one URL, or one per entry."""
    parts: tuple[Process, ...]
    """The processes whose CPU time it costs."""

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return sum(part.cpu_s for part in self.parts)


def installed(name: str, routers: Path | None) -> bool:
    """Whether a system can be started here."""
    if name in ("peerinfer", "round-robin"):
        return True
    return routers is not None and (routers / name / "bin" / "python").exists()


def start(
    name: str, starter: Processes, workers: Sequence[Process], *, routers: Path | None, options: Sequence[str]
) -> Running:
    """Start a system; `options` are for peerinfer's nodes."""
    if name == "round-robin":
        return Running(urls=tuple(worker.url for worker in workers), parts=())
    if name == "peerinfer":
        nodes = swarm(starter, workers, *options)
        return Running(urls=tuple(node.url for node in nodes), parts=tuple(nodes))
    assert routers is not None
    port, metrics = free_port(), free_port()
    binaries = routers / name / "bin"
    command = {
        "sglang-router": [str(binaries / "python"), "-m", "sglang_router.launch_router"],
        "smg": [str(binaries / "smg"), "launch"],
    }[name]
    command += ["--host", "127.0.0.1", "--port", str(port), "--policy", POLICY, "--log-level", "warn"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
    command += ["--worker-urls", *(worker.url for worker in workers)]
    router = starter.start(command, name=name, url=f"http://127.0.0.1:{port}")
    wait_for(f"{router.url}/readiness")
    return Running(urls=(router.url,), parts=(router,))
