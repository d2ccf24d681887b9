"""Clients that hold every answer against the right one."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import trio

from tests.chaos.nodes import Node, Nodes
from tests.chaos.oracle import Oracle, Question
from tests.chaos.tally import Tally

ANSWER_S_MAX = 300.0
TOLD = ("chosen", "reason", "attempts", "ttft_s", "duration_s")
"""Of a decision, where the answer was wrong."""


class Clients:
    """See the module."""

    def __init__(self, nodes: Nodes, oracle: Oracle, tally: Tally) -> None:
        self.closing = False
        self._nodes, self._oracle, self._tally = nodes, oracle, tally

    async def run(self, draw: random.Random) -> None:
        """One request after the other, each at a node that lives."""
        async with httpx.AsyncClient(timeout=ANSWER_S_MAX, trust_env=False) as client:
            while not self.closing:
                living = self._nodes.living()
                if living:
                    await self._ask(client, draw.choice(living), self._oracle.draw(draw))
                else:
                    await trio.sleep(0.1)

    async def _ask(self, client: httpx.AsyncClient, node: Node, question: Question) -> None:
        life = node.life
        try:
            wrong, request_id = await _answer(client, node.http, question)
        except httpx.HTTPError as error:
            wrong, request_id = f"{type(error).__name__}: {error}", "?"
        if wrong is None:
            self._tally.good += 1
            self._tally.moved += await _attempts(client, node, request_id) > 1
        elif node.life != life or node.ending:
            self._tally.excused += 1
        else:
            status = node.process.process.poll()
            ended = "" if status is None else f" (whose process has ended by itself, status {status})"
            why = await _why(client, node, request_id)
            self._tally.bad.append((f"{request_id} at {node.name}{ended}: {wrong}", f"  {why}"))
            await trio.sleep(1.0)


async def _answer(client: httpx.AsyncClient, http: str, question: Question) -> tuple[str | None, str]:
    """What is wrong with the answer, None if nothing; and the request's id."""
    if not question.body.get("stream"):
        response = await client.post(http + question.path, json=question.body)
        request_id = response.headers.get("x-peerinfer-request-id", "?")
        if response.status_code != 200:
            return f"{response.status_code} {response.text[:300]}", request_id
        whole = response.json()
        return _compare(question, _text(whole["choices"][0]), whole["usage"]), request_id
    text, usage, done = "", None, False
    async with client.stream("POST", http + question.path, json=question.body) as response:
        request_id = response.headers.get("x-peerinfer-request-id", "?")
        if response.status_code != 200:
            return f"{response.status_code} {(await response.aread())[:300]!r}", request_id
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    return f"after {len(text)} characters: {chunk['error']}", request_id
                usage = chunk.get("usage") or usage
                text += "".join(_text(choice) for choice in chunk["choices"])
    return ("no [DONE]" if not done else _compare(question, text, usage)), request_id


def _text(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("delta") or choice.get("message") or {}).get("content") or "")


def _compare(question: Question, text: str, usage: dict[str, Any] | None) -> str | None:
    if text != question.answer:
        return f"{text!r} in place of {question.answer!r}"
    if usage is None or usage["completion_tokens"] != question.completion_tokens:
        return f"usage {usage} in place of {question.completion_tokens} tokens"
    return None


async def _attempts(client: httpx.AsyncClient, node: Node, request_id: str) -> int:
    """How many targets were tried; 0 if the entry node does not say any more."""
    try:
        return len((await _decision(client, node, request_id))["attempts"])
    except (httpx.HTTPError, KeyError, ValueError):
        return 0


async def _why(client: httpx.AsyncClient, node: Node, request_id: str) -> str:
    """What the entry node has kept of a request, in a line."""
    try:
        decision = await _decision(client, node, request_id)
    except (httpx.HTTPError, ValueError) as error:
        return f"its entry node does not tell: {error!r}"
    return json.dumps({name: decision.get(name) for name in TOLD})


async def _decision(client: httpx.AsyncClient, node: Node, request_id: str) -> dict[str, Any]:
    answer = await client.get(f"{node.http}/peerinfer/v1/requests/{request_id}", timeout=10)
    return answer.json()  # type: ignore[no-any-return]
