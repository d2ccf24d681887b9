"""The simulated engine's times, language and crashes, in virtual time."""

from __future__ import annotations

import contextlib

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from peerinfer.core.types import AllBlocksCleared, Chunk, End, EngineState, InferRequest
from peerinfer.engine.openai_body import ChatPrompt, Message
from peerinfer.engine.simulated import SimulatedEngine
from peerinfer.engine.simulated_language import Continuation, expected_answer, render
from peerinfer.node.ports import EngineError
from tests.engine.support import MirrorSink, ask, request


def make(**options: float) -> SimulatedEngine:
    settings = {"prefill_tokens_per_s": 100.0, "decode_tokens_per_s": 10.0, "overhead_s": 0.5} | options
    return SimulatedEngine(slots=2, wall_clock=trio.current_time, **settings)  # type: ignore[arg-type]


def text(length: int, letter: str = "x", **options: object) -> dict[str, object]:
    return {"prompt": letter * length, "max_tokens": 1} | options


async def test_a_cold_prompt_costs_overhead_prefill_and_a_token(autojump_clock: MockClock) -> None:
    engine = make()
    async with engine.run(MirrorSink()):
        begun = trio.current_time()
        await ask(engine, text(320), "completions")
        assert trio.current_time() - begun == pytest.approx(0.5 + 320 / 100 + 1 / 10)


async def test_a_hot_prompt_costs_only_its_uncached_tokens(autojump_clock: MockClock) -> None:
    engine = make()
    async with engine.run(MirrorSink()):
        await ask(engine, text(320), "completions")
        begun = trio.current_time()
        assert (await ask(engine, text(320), "completions")).cached_tokens == 304
        assert trio.current_time() - begun == pytest.approx(0.5 + 16 / 100 + 1 / 10)


async def test_a_token_costs_more_the_more_came_before_it(autojump_clock: MockClock) -> None:
    """Attention: half the prompt, cached, leaves three quarters of the pairs to be computed."""
    engine = make(prefill_s_per_pair=0.001)
    async with engine.run(MirrorSink()):
        begun = trio.current_time()
        await ask(engine, text(160), "completions")
        assert trio.current_time() - begun == pytest.approx(0.5 + 160 / 100 + 160**2 / 2 * 0.001 + 1 / 10)
        begun = trio.current_time()
        assert (await ask(engine, text(320), "completions")).cached_tokens == 160
        pairs = (320**2 - 160**2) / 2
        assert trio.current_time() - begun == pytest.approx(0.5 + 160 / 100 + pairs * 0.001 + 1 / 10)


async def test_prefill_is_serial_and_decoding_is_not(autojump_clock: MockClock) -> None:
    """The second of two waits for the first one's prefill, then both decode at full speed."""
    engine = make()
    done: list[float] = []

    async def one(letter: str) -> None:
        await ask(engine, text(200, letter, max_tokens=20), "completions")
        done.append(trio.current_time())

    async with engine.run(MirrorSink()):
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "x")
            nursery.start_soon(one, "y")
        assert [at - begun for at in done] == pytest.approx([2.5 + 2, 5.0 + 2])


async def test_load_shrinks_while_a_prompt_is_in_prefill(autojump_clock: MockClock) -> None:
    """What waits counts in full; what is being computed counts by what is left of it."""
    engine = make()
    async with engine.run(MirrorSink()), contextlib.AsyncExitStack() as asked:
        for length, letter in ((200, "x"), (100, "y"), (50, "z")):
            await asked.enter_async_context(engine.run_infer(request(text(length, letter), "completions")))
            await trio.testing.wait_all_tasks_blocked()
        assert engine.load().queued_prefill_tokens == 350
        await trio.sleep(0.5 + 0.75)
        load = engine.load()
        assert (load.running, load.queued) == (2, 1)
        assert load.queued_prefill_tokens == 125 + 100 + 50
        assert load.recent_prefill_tokens == 75, "what has left the queue was done"


async def test_rates_are_what_was_slept(autojump_clock: MockClock) -> None:
    engine = make()
    async with engine.run(MirrorSink()):
        await ask(engine, text(200, max_tokens=5), "completions")
    assert engine.load().prefill_tokens_per_s == pytest.approx(100)
    assert engine.load().decode_tokens_per_s == pytest.approx(10)


async def test_of_two_equal_prompts_at_once_the_second_is_served_from_the_cache(
    autojump_clock: MockClock,
) -> None:
    engine = make()
    cached: list[int] = []

    async def one() -> None:
        cached.append((await ask(engine, text(100), "completions")).cached_tokens)

    async with engine.run(MirrorSink()), trio.open_nursery() as nursery:
        nursery.start_soon(one)
        nursery.start_soon(one)
    assert sorted(cached) == [0, 96]


async def test_an_answer_has_the_length_it_was_asked_for_or_ends_by_itself(autojump_clock: MockClock) -> None:
    engine = make()
    message = {"messages": [{"role": "user", "content": "hi"}]}
    async with engine.run(MirrorSink()):
        assert (await ask(engine, message | {"max_tokens": 300})).finish_reason == "length"
        ended = await ask(engine, message)
        assert ended.finish_reason == "stop"
        assert ended.text == (await ask(engine, message | {"max_tokens": len(ended.text.encode())})).text


async def test_a_crash_breaks_answers_off_and_loses_the_cache(autojump_clock: MockClock) -> None:
    """Situations 10 and 13: peers are told at once, and the engine comes back by itself."""
    engine, sink = make(load_s=2.0), MirrorSink()
    async with engine.run(sink):
        await ask(engine, text(100), "completions")
        async with engine.run_infer(request(text(100, max_tokens=50), "completions")) as items:
            await anext(items)
            engine.crash(down_s=3.0)
            assert isinstance(sink.events[-1], AllBlocksCleared)
            with pytest.raises(EngineError):
                [item async for item in items]
        crashed_at = trio.current_time()
        assert sink.states[-1] is EngineState.RESTARTING
        assert (await ask(engine, text(100), "completions")).cached_tokens == 0
        assert sink.states[-1] is EngineState.READY
        assert trio.current_time() - crashed_at >= 5.0
        assert sink.agrees_with(engine)


async def test_a_crash_while_loading_starts_loading_again(autojump_clock: MockClock) -> None:
    engine, sink = make(load_s=2.0), MirrorSink()
    async with engine.run(sink):
        await trio.sleep(1.5)
        engine.crash()
        await trio.sleep(1.9)
        assert sink.states == [EngineState.LOADING, EngineState.RESTARTING]
        await trio.sleep(0.2)
        assert sink.states[-1] is EngineState.READY


async def test_two_runs_give_the_same_bytes(autojump_clock: MockClock) -> None:
    """With a clock of its own for `created`, nothing in a chunk depends on the machine."""
    runs: list[list[Chunk | End]] = []
    asked = InferRequest(id="a", endpoint="completions", body=text(50, max_tokens=30))
    for _ in range(2):
        engine = SimulatedEngine(wall_clock=lambda: 1_700_000_000.0)
        async with engine.run(MirrorSink()), engine.run_infer(asked) as items:
            runs.append([item async for item in items])
    assert runs[0] == runs[1]
    assert isinstance(runs[0][-1], End)


def test_a_chat_is_rendered_as_chatml() -> None:
    messages = (Message("user", "hi"), Message("assistant", "he"))
    assert render(ChatPrompt(messages[:1], True, False)) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(ChatPrompt(messages, False, True)).endswith("<|im_start|>assistant\nhe")


@given(st.binary(max_size=60), st.integers(0, 40), st.integers(1, 40))
def test_a_broken_answer_goes_on_as_it_would_have(prompt: bytes, sent: int, rest: int) -> None:
    """The next token depends on all tokens before it, however they came there."""
    whole = expected_answer(prompt, sent + rest)
    assert expected_answer(prompt + whole[:sent], rest) == whole[sent:]
    assert Continuation(prompt + whole).ends_here == Continuation(tuple(prompt + whole)).ends_here


def test_different_prompts_get_different_words() -> None:
    answers = {expected_answer(f"prompt {number} ".encode(), 60) for number in range(50)}
    assert len(answers) == 50
    assert all(answer.decode(errors="ignore").replace(" ", "").isalpha() for answer in answers)


async def test_a_bug_in_serving_one_request_ends_that_request_and_nothing_else(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a rate of 0 divides by zero in prefill; with the rate repaired the same engine serves on."""
    engine = make()
    async with engine.run(MirrorSink()):
        with monkeypatch.context() as broken:
            broken.setattr(engine, "_prefill_tokens_per_s", 0.0)
            for _ in range(3):  # more often than there are slots
                with pytest.raises(EngineError, match="bug"):
                    await ask(engine, text(100), "completions")
        assert "ZeroDivisionError" in caplog.text
        assert (await ask(engine, text(100), "completions")).cached_tokens == 0
        assert engine.load().running == 0
        engine.cache.check()
