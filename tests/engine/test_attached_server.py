"""A server that somebody else runs: its health, and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from peerinfer.config import EngineConfig
from peerinfer.core.types import EngineState
from peerinfer.engine.attached_server import AttachedServer
from peerinfer.engine.openai_upstream import OpenAIUpstream, open_client
from peerinfer.engine.server_facts import DEFAULT_SLOTS, precision, read_facts
from peerinfer.engine.sglang_process import ServerState
from peerinfer.node.ports import EngineError
from tests.engine.mock_server import CONTEXT, MODEL, MockServer, server_info, serving


class Reports:
    """What a server's watcher has told."""

    def __init__(self) -> None:
        self.told: list[ServerState] = []
        self._more = trio.Event()

    def __call__(self, state: ServerState) -> None:
        self.told.append(state)
        self._more.set()
        self._more = trio.Event()

    async def until(self, holds: Callable[[ServerState], bool]) -> ServerState:
        with trio.fail_after(20):
            while not (self.told and holds(self.told[-1])):
                await self._more.wait()
        return self.told[-1]


def config(url: str) -> EngineConfig:
    return EngineConfig(
        kind="sglang", url=url, health_interval_s=0.05, health_timeout_s=2.0, health_failures_max=2
    )


async def test_a_server_is_ready_when_it_answers_and_failing_when_it_does_not() -> None:
    """Each change is told once, and the same server comes back without a restart; situation 13."""
    reports = Reports()
    async with serving() as mock:
        mock.health = 503
        server = AttachedServer(config(mock.url))
        async with server.run(reports):
            await reports.until(lambda told: "503" in told.detail)
            mock.health = 200
            await reports.until(lambda told: told.state is EngineState.READY)
            mock.health = 500
            await reports.until(lambda told: told.state is EngineState.FAILING)
            mock.health = 200
            await reports.until(lambda told: told.state is EngineState.READY)
    states = [told.state for told in reports.told]
    assert states[0] is EngineState.LOADING
    assert states[-1] is EngineState.READY
    assert len(reports.told) == len({(told.state, told.detail) for told in reports.told}) + 1


async def test_a_server_that_is_gone_fails_at_the_first_look() -> None:
    """Nobody listens any more: there is nothing to wait for, however many checks a slow one may fail."""
    reports = Reports()
    life = trio.CancelScope()

    async def live(task_status: trio.TaskStatus[MockServer]) -> None:
        with life:
            async with serving() as mock:
                task_status.started(mock)
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        mock = await nursery.start(live)
        server = AttachedServer(replace(config(mock.url), health_interval_s=60.0, health_failures_max=100))
        async with server.run(reports):
            await reports.until(lambda told: told.state is EngineState.READY)
            life.cancel()
            while reports.told[-1].state is not EngineState.FAILING:
                server.check_soon()
                await trio.sleep(0.02)
            assert mock.url in reports.told[-1].detail


async def test_a_doubt_is_looked_into_at_once() -> None:
    """A request that failed is a reason to look before the next interval."""
    reports = Reports()
    async with serving() as mock:
        server = AttachedServer(
            EngineConfig(kind="sglang", url=mock.url, health_interval_s=60.0, health_failures_max=1)
        )
        async with server.run(reports):
            await reports.until(lambda told: told.state is EngineState.READY)
            mock.health = 500
            server.check_soon()
            await reports.until(lambda told: told.state is EngineState.FAILING)


async def test_sglang_says_what_it_is() -> None:
    async with serving() as mock, open_client() as client:
        mock.infos["/server_info"] = server_info(dtype="float16", kv_cache_dtype="fp8_e5m2")
        facts = await read_facts(OpenAIUpstream(client, mock.url))
    assert facts.is_sglang
    assert (facts.model, facts.block_size, facts.capacity_tokens, facts.slots) == (MODEL, 16, 4096, 4)
    assert facts.context_tokens == CONTEXT
    assert facts.precision == "float16 kv=fp8_e5m2"
    assert facts.events is None
    assert facts.reuses_prefixes
    assert facts.reports_cached_tokens
    assert not facts.parses_chats


async def test_sglangs_cache_events_are_found() -> None:
    described = {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": 5557,
        "replay_endpoint_port_base": 5558,
        "topic": "kv",
        "block_size": 16,
        "dp_size": 1,
    }
    async with serving() as mock, open_client() as client:
        mock.infos["/server_info"] = server_info(kv_events=described, reasoning_parser="qwen3")
        facts = await read_facts(OpenAIUpstream(client, mock.url))
    assert facts.events is not None
    assert (facts.events.live, facts.events.replay) == ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558")
    assert facts.parses_chats


async def test_another_server_is_known_by_its_models() -> None:
    async with serving() as mock, open_client() as client:
        upstream = OpenAIUpstream(client, mock.url)
        for info in (None, {"something": "else"}):
            mock.infos.pop("/server_info", None)
            if info is not None:
                mock.infos["/server_info"] = info
            facts = await read_facts(upstream)
            assert not facts.is_sglang
            assert (facts.model, facts.context_tokens, facts.slots) == (MODEL, CONTEXT, DEFAULT_SLOTS)
            assert facts.block_size is None


async def test_a_server_that_cannot_be_asked_is_an_engine_error() -> None:
    async with open_client() as client:
        with pytest.raises(EngineError):
            await read_facts(OpenAIUpstream(client, "http://127.0.0.1:9"))


@pytest.mark.parametrize(
    ("dtype", "quantization", "kv", "said"),
    [
        ("auto", None, "auto", ""),
        ("torch.bfloat16", None, None, "bfloat16"),
        ("auto", "fp8", "fp8_e4m3", "fp8 kv=fp8_e4m3"),
    ],
)
def test_precision_names_what_is_computed_otherwise(
    dtype: object, quantization: object, kv: object, said: str
) -> None:
    assert precision(dtype, quantization, kv) == said
