"""What the right answer to each request is, and the requests themselves."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from benchmarks.kit.answer import expected_answer as expected_words
from benchmarks.kit.vocabulary import ROLES, TOKENS, spell
from benchmarks.kit.worker import MODEL
from peerinfer.engine.openai_body import ChatPrompt, Message
from peerinfer.engine.simulated_language import expected_answer, render

PREFIXES = 8
PROMPTS = 24
"""Of the embedded engine, whose answers are asked for before anything happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request and the only right answer."""

    path: str
    body: dict[str, Any]
    answer: str
    completion_tokens: int


class Oracle(Protocol):
    """Draws requests whose answers it knows."""

    def draw(self, draw: random.Random) -> Question:
        """A question, streamed or not."""


async def oracle_of(engine: str, http: str, draw: random.Random) -> Oracle:
    """The oracle of an engine. The embedded one is asked, at a node to which nothing has happened yet."""
    if engine == "attached":
        return Attached(draw)
    if engine == "simulated":
        return Simulated(draw)
    questions = []
    async with httpx.AsyncClient(base_url=http, timeout=120, trust_env=False) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        for number in range(PROMPTS):
            content = f"Tell me a story of {number + 2} animals. " + "Be brief. " * (number % PREFIXES)
            body = {
                "model": model,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": 24,
                "temperature": 0,
            }
            answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
            questions.append(
                Question(
                    path="/v1/chat/completions",
                    body=body,
                    answer=answer["choices"][0]["message"]["content"],
                    completion_tokens=answer["usage"]["completion_tokens"],
                )
            )
    return Asked(questions)


class Simulated:
    """The simulated engine's answer is a function of the prompt."""

    def __init__(self, draw: random.Random) -> None:
        self._prefixes = [f"{draw.random()} " + "abcdefgh" * 40 for _ in range(PREFIXES)]

    def draw(self, draw: random.Random) -> Question:
        text = f"{draw.choice(self._prefixes)} {draw.random()} "
        count = draw.randint(20, 120)
        body: dict[str, Any] = {"model": "simulated", "max_tokens": count, "stream": draw.random() < 0.7}
        if draw.random() < 0.5:
            rendered = render(ChatPrompt((Message("user", text),), True, False))
            path, body = "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}
        else:
            rendered = text
            path, body = "/v1/completions", {**body, "prompt": text}
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        answer = expected_answer(tuple(rendered.encode()), count).decode(errors="ignore")
        return Question(path=path, body=body, answer=answer, completion_tokens=count)


class Attached:
    """The kit's engine's answer is one, too; here a word is a token."""

    def __init__(self, draw: random.Random) -> None:
        self._prefixes = [draw.choices(range(TOKENS), k=80) for _ in range(PREFIXES)]

    def draw(self, draw: random.Random) -> Question:
        prompt = draw.choice(self._prefixes) + draw.choices(range(TOKENS), k=draw.randint(1, 40))
        count = draw.randint(8, 60)
        body: dict[str, Any] = {"model": MODEL, "max_tokens": count, "stream": draw.random() < 0.7}
        if draw.random() < 0.5:
            tokens = [TOKENS + ROLES.index("user"), *prompt, TOKENS + ROLES.index("assistant")]
            message = {"role": "user", "content": spell(prompt)}
            path, body = "/v1/chat/completions", {**body, "messages": [message]}
        else:
            tokens = prompt
            path, body = "/v1/completions", {**body, "prompt": spell(prompt)}
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        answer = " " + spell(expected_words(tokens, count))
        return Question(path=path, body=body, answer=answer, completion_tokens=count)


class Asked:
    """Questions whose answers were asked for beforehand."""

    def __init__(self, questions: list[Question]) -> None:
        self._questions = questions

    def draw(self, draw: random.Random) -> Question:
        asked = draw.choice(self._questions)
        body = dict(asked.body)
        if draw.random() < 0.7:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return Question(
            path=asked.path, body=body, answer=asked.answer, completion_tokens=asked.completion_tokens
        )
