"""What a worker answers: a function of all tokens before, and of nothing else.

As with a real model at temperature 0, whoever continues a broken answer from what was sent gets exactly the
rest of it, so that a client who knows the prompt knows every right answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from benchmarks.kit.vocabulary import TOKENS


class Answering:
    """What follows a token sequence, token by token."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._past = blake2b(array("I", tokens).tobytes(), digest_size=4)

    def next_token(self) -> int:
        """The next token, which becomes part of the past."""
        token = int.from_bytes(self._past.digest(), "little") % TOKENS
        self._past.update(array("I", (token,)).tobytes())
        return token


def expected_answer(tokens: Sequence[int], count: int) -> list[int]:
    """The first `count` tokens of the answer to a prompt, for who checks answers."""
    answering = Answering(tokens)
    return [answering.next_token() for _ in range(count)]
