"""The engine in front of a server, on an SGLang-shaped mock: its life, its answers, and how they are left."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from peerinfer.config import EngineConfig
from peerinfer.core.types import Chunk, End, EngineState, RequestError
from peerinfer.engine.choose import build_engine
from peerinfer.engine.sglang import SGLangEngine
from peerinfer.node.ports import EngineAwayError, EngineError
from tests.engine.hf_files import VOCABULARY, make_model
from tests.engine.kv_publisher import Publisher, open_publisher, stored_prompt
from tests.engine.mock_server import MODEL, PAGE, MockServer, error_json, server_info, serving, sse
from tests.engine.support import MirrorSink, chat, request

PIECE = sse({"choices": [{"index": 0, "delta": {"content": "x"}}]})
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture
async def mock(tmp_path: Path) -> AsyncIterator[MockServer]:
    """A server whose model's files are on this machine."""
    model = make_model(tmp_path / "model")
    async with serving() as server:
        server.infos["/server_info"] = server_info(model_path=str(model), tokenizer_path=str(model))
        yield server


@pytest.fixture
def sink() -> MirrorSink:
    return MirrorSink()


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


async def test_an_attached_server_says_what_the_engine_is(mock: MockServer, sink: MirrorSink) -> None:
    async with running(mock, sink) as engine:
        info = engine.info
        assert (info.kind, info.model, info.page_size, info.slots) == ("sglang", MODEL, PAGE, 4)
        assert (info.capacity_pages, info.context_tokens_max) == (4096 // PAGE, 4096)
        assert info.source == "history"
        assert info.fingerprint_fields["weights"].endswith(" bfloat16")
        assert sink.states == [EngineState.LOADING, EngineState.READY]


async def test_answers_come_as_the_server_makes_them(mock: MockServer, sink: MirrorSink) -> None:
    mock.cached_tokens = 32
    async with running(mock, sink) as engine:
        items = await read(engine, chat("hello", stream=True, max_tokens=3))
        body = mock.received[0].body
        assert (body["model"], body["stream"]) == (MODEL, True)
        assert "".join(item.text for item in items if isinstance(item, Chunk)) == " w0 w1 w2"
        end = items[-1]
        assert isinstance(end, End)
        assert (end.cached_tokens, end.usage.completion_tokens) == (32, 3)
        whole, _ = await read(engine, chat("hello", tools=TOOLS))
        assert isinstance(whole, Chunk)
        assert whole.whole
        assert engine.load().running == 0


async def test_a_request_that_comes_while_the_server_loads_waits(mock: MockServer, sink: MirrorSink) -> None:
    engine = await attach(mock)
    mock.health = 503
    async with engine.run(sink), engine.run_infer(request(chat("hello"))) as items:
        await until(lambda: "503" in sink.details[-1])
        assert engine.load().running + engine.load().queued == 1
        assert not mock.received
        mock.health = 200
        with trio.fail_after(20):
            assert [item async for item in items]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("begun", [True, False])
async def test_leaving_ends_the_work_at_the_server(
    mock: MockServer, sink: MirrorSink, stream: bool, tools: object, begun: bool
) -> None:
    """Situation 16: its connection is closed, and it is told to abort, in prefill and after; whole or not."""
    never = trio.Event()
    streamed = stream or tools is None
    mock.script = lambda _: [PIECE, never] if begun and streamed else [never]
    async with running(mock, sink) as engine:
        body = chat("hello", stream=stream, tools=tools)
        async with engine.run_infer(request(body)) as items:
            received = await mock.receives(1)
            if begun and streamed:
                await anext(items)
            left_at = trio.current_time()
        assert trio.current_time() - left_at < 1.5
        assert engine.load().running == engine.load().queued == 0
        with trio.fail_after(5):
            await received.left.wait()
        assert not received.whole
        await until(lambda: bool(mock.aborted))
        assert mock.aborted[0] == received.body["rid"]


async def test_an_answer_that_is_whole_is_not_aborted(mock: MockServer, sink: MirrorSink) -> None:
    async with running(mock, sink) as engine:
        await read(engine, chat("hello", stream=True))
        await read(engine, chat("hello", tools=TOOLS))
        mock.script = lambda _: [sse({"error": error_json("no")})]
        with pytest.raises(RequestError):
            await read(engine, chat("hello", stream=True))
        await trio.sleep(0.3)
    assert mock.aborted == []


async def test_a_slow_reader_holds_nothing_up(mock: MockServer, sink: MirrorSink) -> None:
    """The server is done with it, and so is the load, while its answer waits here."""
    async with running(mock, sink) as engine, engine.run_infer(request(chat("a", stream=True))) as unread:
        await mock.receives(1)
        await until(lambda: engine.load().running + engine.load().queued == 0)
        assert isinstance([item async for item in unread][-1], End)


async def test_a_server_that_fails_gives_back_what_has_not_begun(mock: MockServer, sink: MirrorSink) -> None:
    """And keeps what has: it may be slow, not dead. When it is well again the node takes part again."""
    go_on = trio.Event()
    end = b"data: [DONE]\n\n"
    mock.script = lambda received: [PIECE, go_on, end] if received is mock.received[0] else [go_on]
    async with running(mock, sink) as engine, engine.run_infer(request(chat("a", stream=True))) as begun:
        await anext(begun)
        async with engine.run_infer(request(chat("b", stream=True))) as waiting:
            await mock.receives(2)
            mock.health = 500
            with trio.fail_after(20), pytest.raises(EngineAwayError):
                await anext(waiting)
        assert sink.states[-1] is EngineState.FAILING
        with pytest.raises(EngineAwayError):
            await read(engine, chat("c"))
        go_on.set()
        assert isinstance([item async for item in begun][-1], End)
        mock.health = 200
        await until(lambda: sink.states[-1] is EngineState.READY)
        mock.script = mock.words
        assert await read(engine, chat("d", stream=True))


async def test_a_failure_is_a_reason_to_look_at_the_server(mock: MockServer, sink: MirrorSink) -> None:
    """Long before the next check is due."""
    engine = await attach(mock, health_interval_s=3600.0, health_failures_max=1)
    async with engine.run(sink):
        await sink.ready.wait()
        mock.health = 500
        mock.script = lambda _: [b"data: {no json\n\n"]
        with pytest.raises(EngineError):
            await read(engine, chat("a", stream=True))
        await until(lambda: sink.states[-1] is EngineState.FAILING)


async def test_what_kills_a_server_never_reaches_it(mock: MockServer, sink: MirrorSink) -> None:
    async with running(mock, sink) as engine:
        for prompt in ([VOCABULARY], [-1], [[1], [10**9]]):
            async with engine.run_infer(request({"prompt": prompt}, "completions")) as items:
                with pytest.raises(RequestError) as caught:
                    await anext(items)
            assert (caught.value.status, caught.value.param) == (400, "prompt")
    assert not mock.received


async def test_an_engine_that_stops_breaks_its_answers_off(mock: MockServer, sink: MirrorSink) -> None:
    never = trio.Event()
    mock.script = lambda _: [PIECE, never]
    engine = await attach(mock)

    async def left_alone(task_status: trio.TaskStatus[None]) -> None:
        async with engine.run_infer(request(chat("a", stream=True))) as items:
            await anext(items)
            task_status.started()
            with pytest.raises(EngineError):
                [item async for item in items]

    async with trio.open_nursery() as nursery, engine.run(sink):
        await sink.ready.wait()
        await nursery.start(left_alone)
    with pytest.raises(EngineAwayError):
        await read(engine, chat("a"))


async def test_a_server_that_comes_back_with_another_model_is_not_ours(
    mock: MockServer, sink: MirrorSink
) -> None:
    async with running(mock, sink):
        mock.health = 500
        await until(lambda: sink.states[-1] is EngineState.FAILING)
        original = dict(mock.infos["/server_info"])
        mock.infos["/server_info"] = original | {"model_path": "another"}
        mock.health = 200
        await until(lambda: "another" in sink.details[-1])
        assert sink.states[-1] is EngineState.FAILING
        mock.infos["/server_info"] = original
        await until(lambda: sink.states[-1] is EngineState.READY)


async def test_blocks_that_make_no_pages_are_refused_with_the_flag_to_change(mock: MockServer) -> None:
    mock.infos["/server_info"]["page_size"] = 64
    with pytest.raises(EngineError, match="--page-size 16"):
        await attach(mock)
    assert (await attach(mock, page_size=64)).info.page_size == 64
    mock.infos["/server_info"]["page_size"] = 1
    assert (await attach(mock)).info.page_size == 16


async def test_a_server_that_is_away_is_waited_for(mock: MockServer) -> None:
    """With a line that says so; a model that is named needs no server to begin with."""
    info = mock.infos.pop("/server_info")
    url, mock.url = mock.url, "http://127.0.0.1:9"
    named = await attach(mock, model=info["model_path"])
    assert named.info.fingerprint_fields["weights"]
    with trio.move_on_after(0.3) as waited:
        await attach(mock)
    assert waited.cancelled_caught
    mock.url, mock.infos["/server_info"] = url, info
    served = await attach(mock)
    assert named.info.fingerprint_fields == served.info.fingerprint_fields


async def test_a_server_whose_files_are_not_here_answers_for_itself(
    mock: MockServer, sink: MirrorSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    mock.infos["/server_info"] = server_info(model_path="nobody/has-this", tokenizer_path="nobody/has-this")
    mock.tokenize = lambda body: [1, 2, 3]
    async with running(mock, sink) as engine:
        assert engine.info.fingerprint_fields["weights"] == "served nobody/has-this bfloat16"
        assert engine.tokenizer.source == "server"
        assert await engine.tokenizer.encode("chat", chat("x")) == (1, 2, 3)


async def test_another_openai_server_is_served_through_too(mock: MockServer, sink: MirrorSink) -> None:
    """No ids for requests, no assembling; its model's files were named."""
    model = mock.infos.pop("/server_info")["model_path"]
    engine = await attach(mock, model=model)
    async with engine.run(sink):
        await sink.ready.wait()
        assert (engine.info.kind, engine.info.model) == ("openai", MODEL)
        whole, _ = await read(engine, chat("hello"))
        assert isinstance(whole, Chunk)
        assert whole.whole
        assert "rid" not in mock.received[0].body
        assert len(await read(engine, chat("hello", stream=True))) > 2


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


async def test_the_body_arrives_as_it_came(mock: MockServer, sink: MirrorSink) -> None:
    schema = b'"response_format" : {"type":"json_object","x":1.0}'
    raw = b'{"messages":[{"role":"user","content":"\\u00e9"}], ' + schema + b"}"
    infer = replace(request(json.loads(raw)), raw=raw)
    async with running(mock, sink) as engine, engine.run_infer(infer) as items:
        assert [item async for item in items]
    assert schema in mock.received[0].raw
    assert b'"content":"\\u00e9"' in mock.received[0].raw


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
