"""The managed server with the real SGLang on the CPU: what the stand-in cannot show."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
import trio

from peerinfer.config import EngineConfig
from peerinfer.core.types import EngineState
from peerinfer.engine.sglang_process import ManagedServer, ServerState
from tests.engine.kv_publisher import PAGE, Mirror
from tests.engine.test_kv_mirror_sglang import SEED, Prompts, mirrored, predicted, serving, told
from tests.real_sglang import START_S, sglang_model, sglang_python

pytestmark = pytest.mark.sglang
READY, RESTARTING = EngineState.READY, EngineState.RESTARTING


async def test_a_real_server_says_how_far_it_is_and_leaves_no_process_behind(tmp_path: Path) -> None:
    """One test for one life, since a start takes half a minute. Its blocks of one token, which are SGLang's
    default on a GPU, are mirrored as pages. Then the scheduler is killed, SGLang must notice, and all its
    processes must be gone before the next run, which is ended in the middle of its start."""
    config = EngineConfig(
        kind="sglang",
        python=sglang_python(),
        cache_tokens=2048,
        args=("--device", "cpu", "--page-size", "1"),
        health_timeout_s=30,
    )
    server = ManagedServer(config, model=sglang_model(), log_path=tmp_path / "sglang.log")
    send, states = trio.open_memory_channel[ServerState](1000)

    async def until(state: EngineState) -> list[str]:
        details = []
        with trio.fail_after(START_S):
            async for told in states:
                details.append(told.detail)
                if told.state is state:
                    return details
        raise AssertionError("unreachable")

    async with server.run(send.send_nowait):
        steps = await until(READY)
        stages = {
            step for step in steps if step != "SGLang: starting"
        }  # which ones are seen is its pace's matter
        assert len(stages) >= 2, steps
        first = _processes(server)
        await _blocks_of_one_token_are_mirrored_as_pages(server.url)
        workers = [each for each in first if "scheduler" in each.name() or "scheduler" in str(each.cmdline())]
        os.kill(workers[0].pid, signal.SIGKILL)
        (why,) = [detail for detail in await until(RESTARTING) if "starting it again" in detail]
        assert "SGLang" in why
        _, left = psutil.wait_procs(first, timeout=30)
        assert not left
        assert "SGLang: starting" in (await until(RESTARTING))[-1]
        second = _processes(server)
        asked_at = trio.current_time()
    assert trio.current_time() - asked_at < config.stop_grace_s + 15.0
    _, left = psutil.wait_procs(second, timeout=30)
    assert not left


def _processes(server: ManagedServer) -> list[psutil.Process]:
    assert server.pid is not None
    main = psutil.Process(server.pid)
    return [main, *main.children(recursive=True)]


async def _blocks_of_one_token_are_mirrored_as_pages(url: str) -> None:
    prompts, mirror = Prompts(SEED + 2), Mirror()
    async with serving(url) as server, mirrored(server.endpoints, mirror):
        assert server.endpoints.block_size == 1
        for number in range(40):
            tokens = prompts.draw()
            promised = predicted(mirror, tokens)
            cached = await server.cached_tokens(tokens)
            assert cached // PAGE * PAGE == promised, f"prompt {number}"
            await told(mirror, tokens)
        assert mirror.sync.unkeyed_blocks == 0
        assert any(type(event).__name__ == "BlockRemoved" for event in mirror.events)
