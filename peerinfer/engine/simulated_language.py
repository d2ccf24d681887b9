"""The language of the simulated engine: UTF-8 bytes as tokens, a fixed template, an answer for every prompt.
Prompts may also have tokens that are no bytes, so that experiments can use those of a real tokeniser.

The next token is a function of all tokens before it and of nothing else, as with a real model at
temperature 0: whoever continues a broken answer from what was sent gets exactly the rest of it, so tests
can tell a token that is missing from one that came twice. At the end of a word, a hash over everything so
far draws the next word (and whether the answer ends); within a word there is only one way on. Some words
have letters of two bytes, that is, of two tokens.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from peerinfer.engine.openai_body import ChatPrompt

BYTES = 256
_SPACE = 0x20
_BREAKS = b" \n"
_WORDS_PER_ANSWER = 12  # an answer of unasked length ends after any word with one chance in so many
_WORDS_TEXT = """
apple bridge candle dragon ember forest garden harbour island jacket kettle lantern meadow needle orchard
pebble quill river saddle timber umbrella valley window yellow zephyr amber birch cedar drift eagle feather
glacier hollow ivory juniper kernel ledger marble nectar olive petal quartz raven silver thistle upland
velvet willow yonder zenith café naïve über señor château fjörd smörgås piñata crêpe jalapeño œuvre Ångström
"""
_WORDS = tuple(_WORDS_TEXT.encode().split())


def render(prompt: ChatPrompt) -> str:
    """A chat as ChatML."""
    parts = [f"<|im_start|>{message.role}\n{message.content}<|im_end|>\n" for message in prompt.messages]
    if prompt.continue_final_message:
        parts[-1] = parts[-1].removesuffix("<|im_end|>\n")
    if prompt.add_generation_prompt:
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


class Continuation:
    """What follows a token sequence, token by token."""

    def __init__(self, tokens: Sequence[int]) -> None:
        foreign, text = _part(tokens)
        begin = 1 + max(text.rfind(mark) for mark in _BREAKS)
        self._past = hashlib.blake2b(foreign + text[:begin], digest_size=8)
        self._word = text[begin:]

    @property
    def ends_here(self) -> bool:
        """Whether an answer whose length was not asked for is over now."""
        if self._word != self._drawn():
            return False
        past = self._past.copy()
        past.update(self._word)
        return int.from_bytes(past.digest(), "big") % _WORDS_PER_ANSWER == 0

    def next_token(self) -> int:
        """The next token, which becomes part of the past."""
        drawn = self._drawn()
        if self._word != drawn and drawn.startswith(self._word):
            token = drawn[len(self._word)]
            self._word += bytes([token])
            return token
        self._past.update(self._word + b" ")
        self._word = b""
        return _SPACE

    def _drawn(self) -> bytes:
        return _WORDS[int.from_bytes(self._past.digest(), "big") % len(_WORDS)]


def _part(tokens: Sequence[int]) -> tuple[bytes, bytes]:
    """What goes through the last token that is no byte, as four bytes each, and the bytes after it."""
    try:
        return b"", bytes(tokens)
    except ValueError:
        behind = next(at for at in range(len(tokens), 0, -1) if tokens[at - 1] >= BYTES)
        return array("I", tokens[:behind]).tobytes(), bytes(tokens[behind:])


def expected_answer(tokens: Sequence[int], count: int) -> bytes:
    """The first `count` tokens of the answer to a prompt, for checkers."""
    continuation = Continuation(tokens)
    return bytes(continuation.next_token() for _ in range(count))
