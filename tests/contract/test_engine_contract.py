"""What every engine promises its node (node/ports.py, Engine): one suite for all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import trio

from peerinfer.core.types import Chunk, End, EngineState, Load, RequestError
from peerinfer.engine.paged_engine import PagedEngine
from peerinfer.node.ports import EngineError
from tests.engine.support import MAKERS, PAGE, MakeEngine, MirrorSink, ask, chat, request

FABLE = (
    "A fox saw a bunch of ripe grapes that hung from a vine along a high branch. The grapes seemed ready to "
    "burst with juice, and the fox's mouth watered as he gazed longingly at them."
)
STOPS_WITHIN_S = 1.5  # 0.3 s on a quiet machine


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> MakeEngine:
    """Makes the engine under test."""
    return MAKERS[request.param]


@pytest.fixture
def sink() -> MirrorSink:
    return MirrorSink()


def uncounted(load: Load) -> tuple[int, int, int]:
    return load.running, load.queued, load.queued_prefill_tokens


async def until(holds: Callable[[], bool]) -> None:
    """Engines tell their load when they are asked, so it is asked for until it is there."""
    with trio.fail_after(30):
        while not holds():
            await trio.sleep(0.002)


async def until_load(engine: PagedEngine[Any], *, running: int, queued: int) -> None:
    await until(lambda: (engine.load().running, engine.load().queued) == (running, queued))


async def test_running_does_not_wait_for_the_model(make: MakeEngine, sink: MirrorSink) -> None:
    """A request that comes while the engine loads is answered once it is ready; tokens come before that."""
    engine = make()
    async with engine.run(sink):
        assert sink.states == [EngineState.LOADING]
        tokens = await engine.tokenizer.encode("chat", chat(FABLE))
        assert sink.states == [EngineState.LOADING]
        answered = await ask(engine, chat(FABLE))
        assert sink.states == [EngineState.LOADING, EngineState.READY]
        assert answered.end is not None
        assert answered.end.usage.prompt_tokens == len(tokens)


async def test_chat_chunks_are_openais(make: MakeEngine, sink: MirrorSink) -> None:
    """Also when the body does not ask for a stream: the HTTP face assembles whole answers."""
    engine = make()
    async with engine.run(sink):
        answered = await ask(engine, chat(FABLE, stream=False, max_tokens=6))
    heads = [{key: value for key, value in item.items() if key != "choices"} for item in answered.objects]
    assert all(head == heads[0] for head in heads)
    assert set(heads[0]) == {"id", "object", "created", "model"}
    assert heads[0]["id"].startswith("chatcmpl-")
    assert heads[0]["object"] == "chat.completion.chunk"
    assert heads[0]["model"] == engine.info.model
    choices = [item["choices"] for item in answered.objects]
    assert all(len(choice) == 1 and choice[0]["index"] == 0 for choice in choices)
    assert all(choice[0]["logprobs"] is None for choice in choices)
    deltas = [choice[0]["delta"] for choice in choices]
    assert deltas[0]["role"] == "assistant"
    assert all("role" not in delta for delta in deltas[1:])
    assert "".join(delta.get("content", "") for delta in deltas) == answered.text != ""
    assert [choice[0]["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert answered.finish_reason == "length"
    assert answered.end is not None
    assert answered.end.usage.completion_tokens == 6


async def test_completion_chunks_are_openais(make: MakeEngine, sink: MirrorSink) -> None:
    engine = make()
    async with engine.run(sink):
        answered = await ask(engine, {"prompt": FABLE, "max_tokens": 4}, "completions")
    assert all(item["object"] == "text_completion" for item in answered.objects)
    assert all(item["id"].startswith("cmpl-") for item in answered.objects)
    assert "".join(item["choices"][0]["text"] for item in answered.objects) == answered.text != ""
    assert answered.finish_reason == "length"


async def test_a_prompt_of_tokens_is_answered_as_its_text(make: MakeEngine, sink: MirrorSink) -> None:
    """So is the same chat as text, and all of them share their pages; situations 17 and 18."""
    engine = make()
    async with engine.run(sink):
        as_chat = await ask(engine, chat(FABLE))
        tokens = await engine.tokenizer.encode("chat", chat(FABLE))
        as_tokens = await ask(engine, {"prompt": list(tokens), "max_tokens": 8}, "completions")
    assert as_tokens.text == as_chat.text
    assert as_tokens.cached_tokens == (len(tokens) - 1) // PAGE * PAGE


async def test_greedy_output_is_the_same_cold_and_cached(make: MakeEngine, sink: MirrorSink) -> None:
    """And what the engine took from its cache is what the mirrored tree promised, before and after."""
    engine = make()
    async with engine.run(sink):
        tokens = await engine.tokenizer.encode("chat", chat(FABLE))
        assert sink.promised_tokens(tokens) == 0
        cold = await ask(engine, chat(FABLE, max_tokens=24))
        promised = sink.promised_tokens(tokens)
        hot = await ask(engine, chat(FABLE, max_tokens=24))
        assert cold.cached_tokens == 0
        assert hot.cached_tokens == promised == (len(tokens) - 1) // PAGE * PAGE > 0
        assert (hot.text, hot.token_ids) == (cold.text, cold.token_ids)
        # A chat that shares the beginning only.
        other = chat(FABLE[: len(FABLE) // 2] + " But the crow took them.")
        promised = sink.promised_tokens(await engine.tokenizer.encode("chat", other))
        assert (await ask(engine, other)).cached_tokens == promised > 0


async def test_generated_tokens_are_cached_too(make: MakeEngine, sink: MirrorSink) -> None:
    """A next turn that repeats the whole conversation finds all of it but the last token."""
    engine = make()
    async with engine.run(sink):
        tokens = await engine.tokenizer.encode("chat", chat(FABLE))
        first = await ask(engine, chat(FABLE, max_tokens=3 * PAGE, ignore_eos=True))
        assert first.end is not None
        generated = first.end.usage.completion_tokens
        assert generated == 3 * PAGE
        longer = [*tokens, *first.token_ids, *tokens[:PAGE]]
        again = await ask(engine, {"prompt": longer, "max_tokens": 1}, "completions")
        assert again.cached_tokens == (len(tokens) + len(first.token_ids) - 1) // PAGE * PAGE
        assert again.cached_tokens > len(tokens)


async def test_the_mirror_equals_the_cache_after_any_requests(make: MakeEngine, sink: MirrorSink) -> None:
    """Method: seeded prompts that share prefixes, some concurrent, some cancelled, in a small cache."""
    engine = make(capacity_pages=9)
    rng = random.Random(7)
    words = FABLE.split()

    async def one() -> None:
        text = " ".join(words[: rng.randrange(4, 16)] + rng.choices(words, k=rng.randrange(1, 12)))
        body = {"prompt": text, "max_tokens": rng.randrange(1, 20), "temperature": 0}
        patience_s = rng.choice((0.01, 0.05, 60, 60, 60))
        with trio.move_on_after(patience_s):
            async with engine.run_infer(request(body, "completions")) as items:
                async for item in items:
                    assert isinstance(item, Chunk | End)
        assert sink.agrees_with(engine), "seed 7"

    async with engine.run(sink):
        await sink.ready.wait()
        for _ in range(8):
            async with trio.open_nursery() as nursery:
                for _ in range(rng.randrange(1, 4)):
                    nursery.start_soon(one)
            assert len(engine.cache) <= 9
            prompt = await engine.tokenizer.encode("completions", {"prompt": " ".join(words[:16])})
            promised = sink.promised_tokens(prompt)
            body = {"prompt": list(prompt), "max_tokens": 1}
            assert (await ask(engine, body, "completions")).cached_tokens == promised, "seed 7"
    assert any(type(event).__name__ == "BlockRemoved" for event in sink.events), "nothing was evicted"


async def test_all_events_of_a_request_come_before_its_end(make: MakeEngine, sink: MirrorSink) -> None:
    engine = make()
    async with engine.run(sink):
        async with engine.run_infer(request(chat(FABLE, max_tokens=20))) as items:
            async for item in items:
                if isinstance(item, End):
                    told = len(sink.events)
        assert len(sink.events) == told > 0
        assert sink.agrees_with(engine)


async def test_leaving_during_prefill_frees_the_slot_at_once(make: MakeEngine, sink: MirrorSink) -> None:
    """Situation 16. The pages stay exact: the same prompt is answered as if nothing had happened."""
    engine = make(slots=1)
    long = FABLE * 10
    async with engine.run(sink):
        await sink.ready.wait()
        async with engine.run_infer(request(chat(long))):
            whole = engine.load().queued_prefill_tokens
            await until(lambda: 0 < engine.load().queued_prefill_tokens < whole)
            left_at = trio.current_time()
        assert uncounted(engine.load()) == (0, 0, 0)
        assert trio.current_time() - left_at < STOPS_WITHIN_S
        assert sink.agrees_with(engine)
        interrupted = await ask(engine, chat(FABLE))
    fresh = make()
    async with fresh.run(MirrorSink()):
        assert (await ask(fresh, chat(FABLE))).text == interrupted.text


async def test_leaving_a_stream_frees_the_slot_at_once(make: MakeEngine, sink: MirrorSink) -> None:
    """Situation 16, after the first token; whoever waits for the slot gets it."""
    engine = make(slots=1)
    async with engine.run(sink), trio.open_nursery() as nursery:
        async with engine.run_infer(request(chat(FABLE, max_tokens=800, ignore_eos=True))) as items:
            await anext(items)
            nursery.start_soon(ask, engine, chat(FABLE))
            await until_load(engine, running=1, queued=1)
            left_at = trio.current_time()
        assert trio.current_time() - left_at < STOPS_WITHIN_S
    assert uncounted(engine.load()) == (0, 0, 0)
    assert sink.states == [EngineState.LOADING, EngineState.READY]


async def test_concurrent_requests_get_the_answers_they_get_alone(make: MakeEngine, sink: MirrorSink) -> None:
    """Also when they share a prefix that none of them finds cached, and when they outnumber the slots."""
    engine = make()
    bodies = [chat(FABLE[:90] + f" Number {n} went home.", max_tokens=12) for n in range(4)]
    together: dict[int, tuple[str, int]] = {}

    async def one(number: int) -> None:
        answered = await ask(engine, bodies[number])
        together[number] = (answered.text, answered.cached_tokens)

    async with engine.run(sink):
        await sink.ready.wait()
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(one, number)
            await until_load(engine, running=2, queued=2)
            assert engine.load().slots == 2
            assert engine.load().queued_prefill_tokens > 0
        assert sink.agrees_with(engine)
        alone = [(await ask(engine, body)).text for body in bodies]
    assert [together[number][0] for number in range(4)] == alone


async def test_work_counts_from_the_moment_it_is_handed_over(make: MakeEngine, sink: MirrorSink) -> None:
    """Situation 2: a prompt in prefill is visible load; what is cached of it is not. Rates are measured."""
    engine = make()
    async with engine.run(sink):
        await sink.ready.wait()
        prompt = await engine.tokenizer.encode("chat", chat(FABLE))
        async with engine.run_infer(request(chat(FABLE))) as items:
            load = engine.load()
            assert load.running + load.queued == 1
            assert load.queued_prefill_tokens == len(prompt)
            async for item in items:
                if isinstance(item, Chunk):
                    assert engine.load().queued_prefill_tokens == 0
        cached = (len(prompt) - 1) // PAGE * PAGE
        async with engine.run_infer(request(chat(FABLE), token_ids=prompt)):
            assert engine.load().queued_prefill_tokens == len(prompt) - cached
        assert uncounted(engine.load()) == (0, 0, 0)
        assert engine.load().prefill_tokens_per_s > engine.load().decode_tokens_per_s > 0


async def test_a_slow_reader_keeps_no_slot(make: MakeEngine, sink: MirrorSink) -> None:
    engine = make(slots=1)
    async with engine.run(sink), engine.run_infer(request(chat(FABLE, max_tokens=5))) as unread:
        assert (await ask(engine, chat(FABLE))).text
        kinds = [type(item) async for item in unread]
        assert kinds[-1] is End
        assert set(kinds[:-1]) == {Chunk}


async def test_stop_strings_end_the_answer_and_are_not_shown(make: MakeEngine, sink: MirrorSink) -> None:
    """Method: stops cut from what the engine says anyway, across chunk seams."""
    engine = make()
    async with engine.run(sink):
        whole = (await ask(engine, chat(FABLE, max_tokens=40, ignore_eos=True))).text
        for begin, end in ((8, 13), (11, 12), (3, 20)):
            stop = whole[begin:end]
            stopped = await ask(engine, chat(FABLE, max_tokens=40, ignore_eos=True, stop=["\0never", stop]))
            assert stopped.text == whole[: whole.index(stop)]
            assert stopped.finish_reason == "stop"


async def test_text_and_tokens_of_chunks_belong_together(make: MakeEngine, sink: MirrorSink) -> None:
    """An answer broken off after any chunk goes on as it would have: each token once, none missing.

    Method: continue from the tokens that were sent, and from the text by `continue_final_message`.
    """
    engine = make()
    async with engine.run(sink):
        whole = await ask(engine, chat(FABLE, max_tokens=24, ignore_eos=True))
        prompt = await engine.tokenizer.encode("chat", chat(FABLE))
        sent = whole.chunks[:7]
        ids = tuple(token for chunk in sent for token in chunk.token_ids or ())
        text = "".join(chunk.text for chunk in sent)
        body = {"prompt": [*prompt, *ids], "max_tokens": 24 - len(ids), "ignore_eos": True}
        by_tokens = await ask(engine, body, "completions")
        assert text + by_tokens.text == whole.text
        messages = [{"role": "user", "content": FABLE}, {"role": "assistant", "content": text}]
        body = {"messages": messages, "max_tokens": 24 - len(ids), "ignore_eos": True}
        by_text = await ask(engine, body | {"continue_final_message": True})
        assert text + by_text.text == whole.text


async def test_an_answer_ends_when_the_context_is_full(make: MakeEngine, sink: MirrorSink) -> None:
    engine = make()
    limit = engine.info.context_tokens_max
    async with engine.run(sink):
        tokens = await engine.tokenizer.encode("completions", {"prompt": FABLE})
        body = {"prompt": list((tokens * limit)[: limit - 3]), "max_tokens": 10, "ignore_eos": True}
        async with engine.run_infer(request(body, "completions")) as items:
            assert engine.load().queued_prefill_tokens == limit - 3
        body = {"prompt": list((tokens * limit)[: PAGE * 2]), "max_tokens": limit, "ignore_eos": True}
        async with engine.run_infer(request(body, "completions")) as items:
            await anext(items)


async def test_prompts_that_are_too_long_are_refused_with_the_limit(
    make: MakeEngine, sink: MirrorSink
) -> None:
    engine = make()
    limit = engine.info.context_tokens_max
    async with engine.run(sink):
        for text in (FABLE * (limit // 20), "x" * 4_000_000):
            with pytest.raises(RequestError, match=f"{limit} tokens") as caught:
                await ask(engine, chat(text))
            assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
        assert uncounted(engine.load()) == (0, 0, 0)


async def test_prompts_without_a_token_or_with_unknown_ones_are_refused(
    make: MakeEngine, sink: MirrorSink
) -> None:
    engine = make()
    async with engine.run(sink):
        for prompt in ("", [-1], [1, 2, 10**9]):
            with pytest.raises(RequestError) as caught:
                await ask(engine, {"prompt": prompt}, "completions")
            assert (caught.value.status, caught.value.param) == (400, "prompt")


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("n", {"n": 2}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("logprobs", {"logprobs": True}),
        ("logit_bias", {"logit_bias": {"1": 5}}),
        ("presence_penalty", {"presence_penalty": 0.5}),
        ("cache_salt", {"cache_salt": "mine"}),
        ("a_parameter_of_tomorrow", {"a_parameter_of_tomorrow": 1}),
        ("temperature", {"temperature": 3}),
        ("stop", {"stop": [""]}),
        ("messages", {"messages": []}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ],
)
async def test_what_would_change_the_answer_is_refused_by_name(
    make: MakeEngine, sink: MirrorSink, param: str, body: dict[str, object]
) -> None:
    """Method: the engine need not be loaded to refuse."""
    engine = make()
    async with engine.run_infer(request(chat(FABLE) | body)) as items:
        with pytest.raises(RequestError) as caught:
            await anext(items)
    assert (caught.value.status, caught.value.param) == (400, param)


async def test_a_seed_makes_an_answer_repeatable(make: MakeEngine, sink: MirrorSink) -> None:
    engine = make()
    drawn = {"temperature": 0.9, "top_p": 0.95, "seed": -(2**40) - 3, "max_tokens": 16}
    async with engine.run(sink):
        first = await ask(engine, chat(FABLE, **drawn))
        assert (await ask(engine, chat(FABLE, **drawn))).text == first.text


async def test_an_engine_that_stops_breaks_its_answers_off_with_an_error(
    make: MakeEngine, sink: MirrorSink
) -> None:
    engine = make()

    async def read(task_status: trio.TaskStatus[None]) -> None:
        async with engine.run_infer(request(chat(FABLE, max_tokens=800, ignore_eos=True))) as items:
            await anext(items)
            task_status.started()
            with pytest.raises(EngineError):
                [item async for item in items]

    async with trio.open_nursery() as nursery, engine.run(sink):
        await nursery.start(read)
    with pytest.raises(EngineError):
        await ask(engine, {"prompt": [1, 2, 3]}, "completions")


async def test_an_engine_can_run_again_with_an_empty_cache(make: MakeEngine, sink: MirrorSink) -> None:
    engine = make()
    async with engine.run(sink):
        await ask(engine, chat(FABLE))
    async with engine.run(again := MirrorSink()):
        assert (await ask(engine, chat(FABLE))).cached_tokens == 0
        assert again.agrees_with(engine)
