"""What engines that tell their tokens promise a broken answer: they go on as if nothing had happened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peerinfer.core.answer import Answer
from peerinfer.core.continuation import by_tokens, shortened
from peerinfer.core.types import Chunk, End, InferRequest
from peerinfer.engine.paged_engine import PagedEngine
from tests.engine.support import MAKERS, MirrorSink, chat, request

STORY = "Tell me about a fox, a crow, a naïve bear and their café, at some length."


async def _said(engine: PagedEngine[Any], asked: InferRequest, most: int | None = None) -> list[Chunk | End]:
    """What the engine says; with `most`, its reader leaves after so many chunks."""
    said: list[Chunk | End] = []
    async with engine.run_infer(asked) as items:
        async for item in items:
            said.append(item)
            if len(said) == most:
                break
    return said


def _shown(items: list[Chunk | End]) -> list[object]:
    return [json.loads(item.sse_json) if isinstance(item, Chunk) else item.usage for item in items]


@pytest.mark.parametrize("name", MAKERS)
async def test_an_answer_that_goes_on_at_another_engine_is_the_undisturbed_one(name: str) -> None:
    """At temperature 0, bit for bit, wherever it breaks; the second engine has none of the first one's cache.
    Method: the first is left after some chunks, the core says what request goes on, and how it is joined."""
    first, second = MAKERS[name](), MAKERS[name]()
    async with first.run(MirrorSink()), second.run(MirrorSink()):
        body = chat(STORY, temperature=0, max_tokens=24, stream=True)
        tokens = await first.tokenizer.encode("chat", body)
        asked = request(body, token_ids=tokens)
        whole = await _said(first, asked)
        expected = _shown(whole)
        for after in (1, 2, 7, 16, len(whole) - 2):
            answer = Answer(asked)
            shown = [out for item in whole[:after] for out in answer.take(item)]
            answer.broke()
            onward = by_tokens(asked, answer.answered)
            assert onward is not None
            answer.goes_on(onward.token_ids)
            rest = shortened(onward, answer.count)
            said = answer.finish("length") if rest is None else await _said(second, rest)
            shown += said if rest is None else [out for item in said for out in answer.take(item)]
            assert _shown(shown) == expected
