"""A real SGLang for the tests that are marked `sglang`: where it is installed, and one server of it.

`make sglang-cpu` installs it; `PEERINFER_TEST_SGLANG` names another Python that has it. A start takes some
40 s, so one plain server is shared by all tests of a session (the fixture `sglang_server` in conftest.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import trio

from peerinfer.config import EngineConfig
from peerinfer.engine.sglang_flags import HOST, reserved_ports, server_command, server_environment
from peerinfer.engine.sglang_model import converted_model_path

START_S = 300.0
"""Generous: 40 s on a quiet machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealServer:
    """An SGLang that runs on the CPU, with pages of 16 tokens and room for 4,096."""

    url: str
    events_endpoint: str
    replay_endpoint: str
    pid: int
    model: str
    """The directory of its model."""
    log: Path


def sglang_python() -> str:
    """The Python in whose environment SGLang is installed."""
    python = os.environ.get("PEERINFER_TEST_SGLANG") or str(
        Path(__file__).parents[1] / ".venv-sglang/bin/python"
    )
    assert Path(python).exists(), f"there is no SGLang at {python}: run `make test-sglang`"
    return python


def sglang_model() -> str:
    """The directory of the default model, as SGLang loads it."""
    model = converted_model_path()
    assert model.is_dir(), f"there is no model at {model}: run `make test-sglang`"
    return str(model)


@contextmanager
def real_server(directory: Path, *args: str) -> Iterator[RealServer]:
    """An SGLang that is ready, with these flags besides; killed with all its processes at the end."""
    config = EngineConfig(kind="sglang", args=args, cache_tokens=4096, context_tokens=4096, slots=4)
    python, model, log = sglang_python(), sglang_model(), directory / "sglang.log"
    with reserved_ports(args) as ports, log.open("wb") as output:
        process = subprocess.Popen(
            server_command(config, python=python, model=model, ports=ports, gpu=False),
            env=server_environment(os.environ, model=model, gpu=False),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            url = f"http://{HOST}:{ports.http}"
            _wait_until_healthy(process, url, log)
            yield RealServer(
                url=url,
                events_endpoint=f"tcp://{HOST}:{ports.events}",
                replay_endpoint=f"tcp://{HOST}:{ports.replay}",
                pid=process.pid,
                model=model,
                log=log,
            )
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def empty_cache(client: httpx.AsyncClient) -> None:
    """Have a server forget all prompts, as soon as it has ended what a test before left to it."""
    with trio.fail_after(120):
        while not (await client.post("/flush_cache")).is_success:
            await trio.sleep(0.05)  # polls a real process: there is nothing to wait on


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    with httpx.Client(trust_env=False, timeout=30) as client:
        while True:
            assert process.poll() is None, f"SGLang ended:\n{log.read_text()[-4000:]}"
            assert time.monotonic() < deadline, f"SGLang is not up:\n{log.read_text()[-4000:]}"
            try:
                if client.get(f"{url}/health").is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.25)  # polls a real process: there is nothing to wait on
