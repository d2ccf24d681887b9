"""What an engine in front of a server knows of its cache: from events, replayed or not, or from history."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from peerinfer.core.types import End, EngineState
from peerinfer.engine.sglang import SGLangEngine
from tests.engine.attached import loaded_server, running, until
from tests.engine.kv_publisher import Publisher, open_publisher, stored_prompt
from tests.engine.mock_server import PAGE, MockServer
from tests.engine.support import MirrorSink, request


@pytest.fixture
async def mock(tmp_path: Path) -> AsyncIterator[MockServer]:
    async with loaded_server(tmp_path) as server:
        yield server


@pytest.fixture
def sink() -> MirrorSink:
    return MirrorSink()


def kv_events(publisher_url: str, replay_url: str) -> dict[str, Any]:
    live, replay = urlsplit(publisher_url), urlsplit(replay_url)
    return {
        "publisher": "zmq",
        "endpoint_host": live.hostname,
        "endpoint_port_base": live.port,
        "replay_endpoint_port_base": replay.port,
        "topic": "kv",
        "block_size": PAGE,
        "dp_size": 1,
    }


@asynccontextmanager
async def with_events(mock: MockServer, sink: MirrorSink) -> AsyncIterator[tuple[SGLangEngine, Publisher]]:
    async with open_publisher(topic="kv") as (publisher, endpoints):
        assert endpoints.replay is not None
        mock.infos["/server_info"]["kv_events"] = kv_events(endpoints.live, endpoints.replay)
        async with running(mock, sink) as engine:
            yield engine, publisher


async def test_the_tree_follows_the_servers_events(mock: MockServer, sink: MirrorSink) -> None:
    """All events of a request have come before its `End`, though they are published after its answer."""
    prompt = tuple(range(3 * PAGE + 5))
    async with with_events(mock, sink) as (engine, publisher):
        assert engine.info.source == "events"

        async def late() -> None:
            await mock.receives(1)
            await trio.sleep(0.01)
            publisher.publish(stored_prompt(prompt))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(late)
            body = {"prompt": list(prompt), "stream": True}
            async with engine.run_infer(request(body, "completions", prompt)) as items:
                async for item in items:
                    if isinstance(item, End):
                        assert sink.promised_tokens((*prompt, 0)) == 3 * PAGE
        assert sink.promised_tokens((*prompt, 0)) == 3 * PAGE


async def test_a_server_that_began_again_is_told_as_restarted(mock: MockServer, sink: MirrorSink) -> None:
    """Situation 10, where its health never failed: its events say so, and the tree is empty at once."""
    prompt = tuple(range(2 * PAGE))
    async with with_events(mock, sink) as (_, publisher):
        await publisher.subscribed()
        publisher.publish(stored_prompt(prompt))
        await until(lambda: sink.promised_tokens((*prompt, 0)) == 2 * PAGE)
        publisher.begin_again()
        publisher.publish(stored_prompt(tuple(range(100, 100 + PAGE))))
        await until(lambda: sink.states[-2:] == [EngineState.RESTARTING, EngineState.READY])
        assert sink.promised_tokens((*prompt, 0)) == 0
        await until(lambda: sink.promised_tokens((*range(100, 100 + PAGE), 0)) == PAGE)


async def test_events_of_the_ready_server_are_replayed_after_a_failure(
    mock: MockServer, sink: MirrorSink
) -> None:
    """Situation 13: its cache was there all the time."""
    prompt = tuple(range(2 * PAGE))
    async with with_events(mock, sink) as (engine, publisher):
        publisher.publish(stored_prompt(prompt))
        await until(lambda: sink.promised_tokens((*prompt, 0)) == 2 * PAGE)
        mock.health = 500
        await until(lambda: sink.states[-1] is EngineState.FAILING)
        sink.sync.clear()  # as a node does
        mock.health = 200
        await until(lambda: sink.states[-1] is EngineState.READY)
        await until(lambda: sink.promised_tokens((*prompt, 0)) == 2 * PAGE)
        assert engine.info.source == "events"


async def test_without_events_the_tree_is_guessed_and_says_so(
    mock: MockServer, sink: MirrorSink, caplog: pytest.LogCaptureFixture
) -> None:
    """What was answered counts as cached; what the server then does not reuse is soon believed no longer."""
    prompt = tuple(range(3 * PAGE))
    body = {"prompt": list(prompt), "stream": True}
    with caplog.at_level(logging.WARNING, "peerinfer.engine"):
        async with running(mock, sink) as engine:
            assert "no cache events" in caplog.text
            assert engine.info.source == "history"
            for _ in range(2):
                async with engine.run_infer(request(body, "completions", prompt)) as items:
                    assert [item async for item in items]
                assert sink.promised_tokens((*prompt, 0)) == 3 * PAGE
            await until(lambda: sink.promised_tokens((*prompt, 0)) == 0)


async def test_a_server_that_keeps_no_prefixes_promises_none(mock: MockServer, sink: MirrorSink) -> None:
    mock.infos["/server_info"]["disable_radix_cache"] = True
    prompt = tuple(range(3 * PAGE))
    async with running(mock, sink) as engine:
        body = {"prompt": list(prompt), "stream": True}
        async with engine.run_infer(request(body, "completions", prompt)) as items:
            assert [item async for item in items]
        assert sink.promised_tokens((*prompt, 0)) == 0


async def test_events_that_cannot_be_reached_are_replaced_by_a_guess_until_they_come(
    mock: MockServer, sink: MirrorSink, caplog: pytest.LogCaptureFixture
) -> None:
    """Said loudly, and undone as soon as there are events: the tree begins anew with what they say."""
    prompt, other = tuple(range(2 * PAGE)), tuple(range(500, 500 + PAGE))
    async with open_publisher(topic="kv") as (_, endpoints):
        pass
    assert endpoints.replay is not None
    mock.infos["/server_info"]["kv_events"] = kv_events(endpoints.live, endpoints.replay)
    with caplog.at_level(logging.WARNING, "peerinfer.engine"):
        async with running(mock, sink) as engine:
            await until(lambda: engine.info.source == "history")
            assert "cache=guessed" in caplog.text
            body = {"prompt": list(prompt), "stream": True}
            async with engine.run_infer(request(body, "completions", prompt)) as items:
                assert [item async for item in items]
            assert sink.promised_tokens((*prompt, 0)) == 2 * PAGE
            async with open_publisher(at=endpoints, topic="kv") as (publisher, _):
                publisher.publish(stored_prompt(other))
                await until(lambda: sink.promised_tokens((*other, 0)) == PAGE)
                assert engine.info.source == "events"
                assert sink.promised_tokens((*prompt, 0)) == 0
