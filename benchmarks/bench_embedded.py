"""What the embedded engine costs on this machine: prefill, reuse, decoding, cancelling, tokenising, memory.

Texts are new in each round, so nothing is cached by accident. Run it as

    python benchmarks/bench_embedded.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import platform
import random
import resource
import statistics
import sys
import time
from collections.abc import Sequence

import trio

from peerinfer.core.types import CacheEvent, Chunk, End, EngineState, InferRequest
from peerinfer.engine.embedded import EmbeddedEngine
from peerinfer.engine.model_store import fetch_default_model

WORDS_TEXT = "the a fox crow grape vine high branch saw ripe mouth water walked jumped stone river wood"
WORDS = WORDS_TEXT.split()
PROMPT_WORDS = 508  # 540 tokens with the chat template
DECODED_TOKENS = 60
CANCEL_AFTER_S = (0.02, 0.1, 0.25, 0.5, 0.9)


class Sink:
    """Waits for the engine to be ready."""

    def __init__(self) -> None:
        self.ready = trio.Event()

    def cache_events(self, events: Sequence[CacheEvent]) -> None:
        """Not looked at."""

    def engine_state(self, state: EngineState, detail: str) -> None:
        """Ready or not, and why."""
        print(f"{state}: {detail}", file=sys.stderr)
        if state is EngineState.READY:
            self.ready.set()


def chat(rng: random.Random, **options: object) -> dict[str, object]:
    text = " ".join(rng.choices(WORDS, k=PROMPT_WORDS))
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "temperature": 0}
    return body | options


async def timed(engine: EmbeddedEngine, body: dict[str, object]) -> tuple[float, float, End]:
    """Seconds to the first chunk and to the end, and the end."""
    begun, first = trio.current_time(), 0.0
    async with engine.run_infer(InferRequest(id="bench", endpoint="chat", body=body)) as items:
        async for item in items:
            if isinstance(item, Chunk):
                first = first or trio.current_time() - begun
            else:
                return first, trio.current_time() - begun, item
    raise AssertionError("an answer without an end")


async def cancelled(engine: EmbeddedEngine, body: dict[str, object], after_s: float) -> float:
    """Seconds from leaving a prompt in prefill until its slot is free."""
    async with engine.run_infer(InferRequest(id="bench", endpoint="chat", body=body)):
        await trio.sleep(after_s)
        left_at = trio.current_time()
    assert engine.load().running == 0
    return trio.current_time() - left_at


def report(name: str, values: list[float], unit: str) -> None:
    print(f"{name:<44} {statistics.median(values):9.2f} {unit:<9} ({min(values):.2f} to {max(values):.2f})")


def progress(what: str, share: float) -> None:
    print(f"{what}: {share:.0%}", file=sys.stderr)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


async def bench(rounds: int) -> None:
    rng = random.Random(1)
    begun = time.perf_counter()
    engine, sink = EmbeddedEngine(model=fetch_default_model(progress)), Sink()
    report("construct, fingerprint included", [1000 * (time.perf_counter() - begun)], "ms")
    async with engine.run(sink):
        begun = trio.current_time()
        await sink.ready.wait()
        report("ready, rates measured", [trio.current_time() - begun], "s")
        report("peak memory, 2 slots of 2,048 tokens", [peak_mb()], "MB")
        bodies = [chat(rng) for _ in range(rounds)]
        count = len(await engine.tokenizer.encode("chat", bodies[0]))
        encoded = []
        for body in bodies * 20:
            started = time.perf_counter()
            await engine.tokenizer.encode("chat", body)
            encoded.append(1000 * (time.perf_counter() - started))
        report(f"body to {count} tokens", encoded, "ms")
        cold = [await timed(engine, body) for body in bodies]
        hot = [await timed(engine, body) for body in bodies]
        report(f"{count} tokens in, 1 out, cold", [total for _, total, _ in cold], "s")
        report(f"same, {hot[0][2].cached_tokens} tokens cached", [total for _, total, _ in hot], "s")
        decoded = [
            await timed(engine, body | {"max_tokens": DECODED_TOKENS, "ignore_eos": True}) for body in bodies
        ]
        report("decode", [(DECODED_TOKENS - 1) / (total - first) for first, total, _ in decoded], "tokens/s")
        left = [1000 * await cancelled(engine, chat(rng), after_s) for after_s in CANCEL_AFTER_S]
        report("cancel in prefill", left, "ms")
        report(f"peak memory, {len(engine.cache)} pages cached", [peak_mb()], "MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, {platform.machine()}, one thread per slot; median (min to max)")
    trio.run(bench, arguments.rounds)


if __name__ == "__main__":
    main()
