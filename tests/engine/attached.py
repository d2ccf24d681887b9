"""An engine attached to an SGLang-shaped mock, for the tests of its life and of its cache events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from peerinfer.config import EngineConfig
from peerinfer.core.types import Chunk, End
from peerinfer.engine.choose import build_engine
from peerinfer.engine.sglang import SGLangEngine
from tests.engine.hf_files import make_model
from tests.engine.mock_server import MockServer, server_info, serving
from tests.engine.support import MirrorSink, request


@asynccontextmanager
async def loaded_server(tmp_path: Path) -> AsyncIterator[MockServer]:
    """A server whose model's files are on this machine."""
    model = make_model(tmp_path / "model")
    async with serving() as server:
        server.infos["/server_info"] = server_info(model_path=str(model), tokenizer_path=str(model))
        yield server


def config(mock: MockServer) -> EngineConfig:
    return EngineConfig(
        kind="sglang", url=mock.url, health_interval_s=0.05, health_timeout_s=5.0, health_failures_max=2
    )


async def attach(mock: MockServer, **changes: Any) -> SGLangEngine:
    engine, _ = await build_engine(replace(config(mock), **changes), data_dir=Path("unused"))
    assert isinstance(engine, SGLangEngine)
    return engine


@asynccontextmanager
async def running(mock: MockServer, sink: MirrorSink) -> AsyncIterator[SGLangEngine]:
    """An engine that is ready."""
    engine = await attach(mock)
    async with engine.run(sink):
        with trio.fail_after(20):
            await sink.ready.wait()
        yield engine


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not holds():
            await trio.sleep(0.005)


async def read(engine: SGLangEngine, body: dict[str, Any]) -> list[Chunk | End]:
    async with engine.run_infer(request(body)) as items:
        return [item async for item in items]
