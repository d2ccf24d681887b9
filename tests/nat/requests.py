"""Prompts and answers of the tests with real NATs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from tests.e2e.processes import PeerProcess, wait_until

TOKENS = 40


def body(prompt: str) -> dict[str, object]:
    """A completion of a second."""
    return {"model": "simulated", "prompt": prompt, "max_tokens": TOKENS}


def new_prompt(seed: int, characters: int = 2000) -> str:
    """A text that no other prompt shares a page with."""
    rng = random.Random(seed)
    return f"{seed:08d} " + "".join(rng.choice("abcdefghij klmnop") for _ in range(characters))


def warm(node: PeerProcess, prompt: str, *, known_at: PeerProcess) -> str:
    """Have a node cache a prompt, and another one know it; the right answer."""
    headers = {"x-peerinfer-target": node.peer_id}
    answer = node.client.post("/v1/completions", json=body(prompt), headers=headers).raise_for_status()
    pages = node.json("status")["cache"]["pages"]
    wait_until(
        lambda: known_at.peers()[node.peer_id]["pages"] == pages, within_s=10, what="its tree is known"
    )
    return str(answer.json()["choices"][0]["text"])


def stream_text(node: PeerProcess, prompt: str, *, begun: Callable[[str], None]) -> str:
    """The whole text of a streamed answer; `begun` is told who serves it when its first text is there.

    By the paper's rule, since a busy machine makes round trips that no prefix is worth.
    """
    text = ""
    headers = {"x-peerinfer-policy": "longest-prefix"}
    asked = {**body(prompt), "stream": True}
    with node.client.stream("POST", "/v1/completions", json=asked, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                return text
            if line.startswith("data: "):
                event = json.loads(line[6:])
                assert "error" not in event, event
                if not text:
                    begun(answer.headers["x-peerinfer-served-by"])
                text += event["choices"][0]["text"]
    raise AssertionError("the answer has no end")
