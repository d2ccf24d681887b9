"""The engine in front of a server, on an SGLang-shaped mock: its life, its answers, and how they are left."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from peerinfer.core.types import Chunk, End, EngineState, RequestError
from peerinfer.node.ports import EngineAwayError, EngineError
from tests.engine.attached import attach, loaded_server, read, running, until
from tests.engine.hf_files import VOCABULARY
from tests.engine.mock_server import MODEL, PAGE, MockServer, error_json, server_info, sse
from tests.engine.support import MirrorSink, chat, request

PIECE = sse({"choices": [{"index": 0, "delta": {"content": "x"}}]})
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture
async def mock(tmp_path: Path) -> AsyncIterator[MockServer]:
    async with loaded_server(tmp_path) as server:
        yield server


@pytest.fixture
def sink() -> MirrorSink:
    return MirrorSink()


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


@pytest.mark.parametrize("name", ["", "chatcmpl-"])
async def test_leaving_ends_no_work_that_has_a_longer_name(
    mock: MockServer, sink: MirrorSink, name: str
) -> None:
    """SGLang aborts all requests whose names begin with the one that it is told, and a client may choose any.

    Method: one such client leaves while another one waits.
    """
    mock.script = lambda _: [trio.Event()]
    async with running(mock, sink) as engine, engine.run_infer(request(chat("a", stream=True))):
        waiting = await mock.receives(1)
        async with engine.run_infer(request(chat("b", stream=True, rid=name))):
            leaving = await mock.receives(2)
        with trio.fail_after(5):
            await leaving.left.wait()
        await trio.sleep(0.4)
        assert leaving.body["rid"] == name
        assert waiting.body["rid"].startswith(name)
        assert mock.aborted == []


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


async def test_the_body_arrives_as_it_came(mock: MockServer, sink: MirrorSink) -> None:
    schema = b'"response_format" : {"type":"json_object","x":1.0}'
    raw = b'{"messages":[{"role":"user","content":"\\u00e9"}], ' + schema + b"}"
    infer = replace(request(json.loads(raw)), raw=raw)
    async with running(mock, sink) as engine, engine.run_infer(infer) as items:
        assert [item async for item in items]
    assert schema in mock.received[0].raw
    assert b'"content":"\\u00e9"' in mock.received[0].raw
