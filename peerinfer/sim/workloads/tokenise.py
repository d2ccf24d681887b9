"""Texts to tokens, with the default model's own vocabulary where it is here, else word by word.

The word-level tokeniser is not any model's, but it is deterministic, needs nothing, and gives prompts of
about the same length; what a cache can share depends on lengths and on what is equal, not on the numbers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from peerinfer.sim.workloads.draw import FIRST_TOKEN
from peerinfer.sim.workloads.workload import Tokens

_PIECES = re.compile(r"\s?[^\W\d_]{1,6}|[^\W\d_]{1,6}|\d|\s?[^\w\s]|\s", re.UNICODE)
"""A word in pieces of up to six letters, a digit, a mark, a white space: about as many as a BPE makes."""
_KINDS = 48128


@dataclass(frozen=True, slots=True)
class Tokenise:
    """A tokeniser by name; the same name gives the same tokens."""

    name: str
    tokens: Callable[[str], Tokens]


@contextmanager
def open_tokeniser() -> Iterator[Tokenise]:
    """The default model's tokeniser, if the model is on this machine, else words."""
    from peerinfer.engine.model_store import DEFAULT_MODEL, default_model_path

    if not default_model_path().exists():
        yield Tokenise("words", words_to_tokens)
        return
    from peerinfer.engine.llama import Model

    model = Model(default_model_path())
    try:
        yield Tokenise(DEFAULT_MODEL, lambda text: model.tokenize(text, add_special=False))
    finally:
        model.close()


def words_to_tokens(text: str) -> Tokens:
    """Pieces of words, each numbered by its hash."""
    return tuple(map(_number, _PIECES.findall(text)))


def _number(piece: str) -> int:
    digest = hashlib.blake2b(piece.encode(), digest_size=4).digest()
    return FIRST_TOKEN + int.from_bytes(digest, "little") % _KINDS
