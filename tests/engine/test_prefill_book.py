"""What an engine still has to compute: a page that several prompts share counts once."""

from __future__ import annotations

import contextlib

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from peerinfer.engine.simulated import SimulatedEngine
from tests.engine.support import MirrorSink, ask, request

PREFIX = "p" * 160


def make(**options: int) -> SimulatedEngine:
    return SimulatedEngine(slots=1, prefill_tokens_per_s=100.0, overhead_s=0.0, **options)  # type: ignore[arg-type]


def body(tail: str) -> dict[str, object]:
    return {"prompt": PREFIX + tail, "max_tokens": 1}


async def test_a_prefix_that_waits_several_times_counts_once(autojump_clock: MockClock) -> None:
    """Whoever asks this node for its load must not take it for three times as busy as it is."""
    engine = make()
    async with engine.run(MirrorSink()), contextlib.AsyncExitStack() as asked:
        for letter in "abc":
            await asked.enter_async_context(engine.run_infer(request(body(letter * 32), "completions")))
        assert engine.load().queued_prefill_tokens == 160 + 3 * 32
        # Which of the three begins is trio's matter.
        await trio.sleep(1.0)
        assert engine.load().queued_prefill_tokens == 160 + 3 * 32 - 100


async def test_the_load_is_what_is_then_computed(autojump_clock: MockClock) -> None:
    """Method: at 100 tokens a second the queue's tokens are the time that all answers take."""
    engine = make(decode_tokens_per_s=1_000_000)
    async with engine.run(MirrorSink()), trio.open_nursery() as nursery:
        for tail in ("a" * 32, "b" * 20, "", "a" * 48):
            nursery.start_soon(ask, engine, body(tail), "completions")
            await wait_all_tasks_blocked()
        told, begun = engine.load().queued_prefill_tokens, trio.current_time()
        while engine.load().running:
            await trio.sleep(0.01)
        assert abs(trio.current_time() - begun - told / 100.0) < 0.05


async def test_who_goes_before_it_has_computed_leaves_the_prefix_to_the_next(
    autojump_clock: MockClock,
) -> None:
    engine = make()
    async with engine.run(MirrorSink()), contextlib.AsyncExitStack() as asked:
        async with engine.run_infer(request(body("a" * 32), "completions")):
            for letter in "bc":
                await asked.enter_async_context(engine.run_infer(request(body(letter * 32), "completions")))
            assert engine.load().queued_prefill_tokens == 160 + 3 * 32
        assert engine.load().queued_prefill_tokens == 160 + 2 * 32


async def test_a_prefix_that_is_evicted_counts_again(autojump_clock: MockClock) -> None:
    """The cache has room for one prompt: what waits reckons with the prefix until another prompt takes it."""
    engine = make(capacity_pages=10)
    async with engine.run(MirrorSink()), contextlib.AsyncExitStack() as asked:
        await ask(engine, body(""), "completions")
        await asked.enter_async_context(
            engine.run_infer(request({"prompt": "q" * 160, "max_tokens": 1}, "completions"))
        )
        await wait_all_tasks_blocked()
        await asked.enter_async_context(engine.run_infer(request(body("a" * 32), "completions")))
        await wait_all_tasks_blocked()
        assert engine.load().queued_prefill_tokens == 160 + 32
        await trio.sleep(1.61)
        assert engine.load().queued_prefill_tokens == 160 + 32
