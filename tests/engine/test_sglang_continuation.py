"""An answer that broke off at a real SGLang goes on as a direct call with the same beginning does.

SGLang's streams tell no tokens, so a broken answer is continued by its text: a completion's prompt grows by
it, and a chat gets it as a last message to be continued. Whatever the engine makes of that is what the client
must get: no more and no less than from a call that it makes itself with the part that it has.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from peerinfer.core.types import Chunk, End, InferRequest
from peerinfer.node.node import Node
from peerinfer.node.ports import EngineError
from tests.engine.record_sglang import PATHS
from tests.engine.served_nodes import alone
from tests.real_sglang import RealServer

pytestmark = pytest.mark.sglang

PIECES = 4
"""Of text, before the answer breaks off."""
TOKENS = 12
QUESTION = "Name the planets of the solar system, and say a word about each."
ASKED: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": QUESTION}]},
    "chat with a system prompt": {
        "messages": [{"role": "system", "content": "You are terse."}, {"role": "user", "content": QUESTION}]
    },
    "completions": {"prompt": "The planets of the solar system are"},
}


@pytest.mark.parametrize("name", ASKED)
async def test_a_broken_answer_goes_on_as_a_direct_call_with_its_beginning(
    sglang_server: RealServer, name: str
) -> None:
    endpoint = name.split()[0]
    async with alone(sglang_server.url) as (client, node):
        body = {**ASKED[name], "model": node.info.model, "temperature": 0, "max_tokens": TOKENS}
        body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        said = _break_once(node)
        answer = Answer(endpoint, (await client.post(PATHS[endpoint], json=body)).text)
        beginning = "".join(said)
        assert len(said) == PIECES
        async with httpx.AsyncClient(base_url=sglang_server.url, timeout=120, trust_env=False) as direct:
            onward = _onward(body, beginning) | {"max_tokens": TOKENS - PIECES}
            rest = Answer(endpoint, (await direct.post(PATHS[endpoint], json=onward)).text)
            assert answer.text == beginning + rest.text
            assert rest.text
            assert answer.reasons == rest.reasons == ["length"]
            whole = Answer(endpoint, (await direct.post(PATHS[endpoint], json=body)).text)
        assert answer.usage == whole.usage, "what the client pays for is one answer"
        print(f"{name}: {answer.text!r}, undisturbed {whole.text!r}")


class Answer:
    """What a stream said."""

    def __init__(self, endpoint: str, stream: str) -> None:
        events = [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]
        assert stream.endswith("data: [DONE]\n\n"), stream
        assert not any("error" in event for event in events), stream
        choices = [event["choices"][0] for event in events if event["choices"]]
        said = [
            choice["delta"].get("content") if endpoint == "chat" else choice["text"] for choice in choices
        ]
        self.text = "".join(piece or "" for piece in said)
        self.reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        (usage,) = [event["usage"] for event in events if not event["choices"]]
        self.usage = (usage["prompt_tokens"], usage["completion_tokens"])


def _onward(body: dict[str, Any], beginning: str) -> dict[str, Any]:
    """The call that a client makes itself to have its answer go on."""
    if "prompt" in body:
        return body | {"prompt": body["prompt"] + beginning}
    messages = [*body["messages"], {"role": "assistant", "content": beginning}]
    return body | {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}


def _break_once(node: Node) -> list[str]:
    """Have the node's engine break off its next answer after some pieces of text; they are noted."""
    engine = node._context.engine
    run_infer, said = engine.run_infer, list[str]()

    @asynccontextmanager
    async def breaking(request: InferRequest) -> AsyncIterator[AsyncIterator[Chunk | End]]:
        engine.run_infer = run_infer  # type: ignore[method-assign]
        async with run_infer(request) as items:

            async def some() -> AsyncIterator[Chunk | End]:
                async for item in items:
                    if isinstance(item, Chunk) and item.text:
                        if len(said) == PIECES:
                            raise EngineError("broken off by the test")
                        said.append(item.text)
                    yield item

            yield some()

    engine.run_infer = breaking  # type: ignore[method-assign]
    return said
