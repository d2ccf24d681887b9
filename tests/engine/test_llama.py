"""What the embedded engine rests on: llama.cpp's pages have the same bits however they came about."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from peerinfer.engine.llama import CHUNK_TOKENS, Model, Slot, token_bytes
from peerinfer.engine.openai_body import Options
from peerinfer.node.ports import EngineError
from tests.engine.support import PAGE, default_model

GREEDY = Options(max_tokens=None, temperature=0.0, top_p=1.0, seed=None, stop=(), ignore_eos=False)
CONTEXT = 256
SPM, BPE = 1, 2  # llama.cpp's numbers


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    model = Model(default_model())
    yield model
    model.close()


@pytest.fixture
def slot(model: Model) -> Iterator[Slot]:
    slot = Slot(model, context_tokens=CONTEXT, page_size=PAGE)
    yield slot
    slot.close()


def compute(
    slot: Slot, tokens: list[int], sizes: Iterable[int], pages: list[bytes] | None = None
) -> tuple[list[bytes], int]:
    """A prompt's pages, computed in chunks of these sizes behind cached pages, and the next token."""
    slot.begin(GREEDY)
    pages = list(pages or ())
    slot.load(pages)
    begin, drawn = len(pages) * PAGE, None
    for size in sizes:
        chunk = tokens[begin : begin + size]
        step = slot.advance(chunk, begin, draw=begin + len(chunk) == len(tokens))
        pages += step.pages
        begin += len(chunk)
        if step.token is not None:
            drawn = step.token
            break
    slot.clear()
    assert drawn is not None
    return pages, drawn


def test_pages_have_the_same_bits_cold_cached_and_decoded(slot: Slot) -> None:
    """Everything else rests on this: greedy answers equal with any cache, generated tokens cached.

    Method: 100 tokens in whole chunks, pages, odd pieces and one by one, and behind cached pages.
    """
    rng = random.Random(1)
    tokens = [rng.randrange(20, 49_000) for _ in range(100)]
    cold = compute(slot, tokens, itertools.repeat(CHUNK_TOKENS))
    assert len(cold[0]) == 100 // PAGE
    assert compute(slot, tokens, itertools.repeat(PAGE)) == cold
    assert compute(slot, tokens, itertools.cycle((7, 32, 1, 13, 20))) == cold
    assert compute(slot, tokens, itertools.repeat(1)) == cold
    for known in (1, 3, 6):
        assert compute(slot, tokens, itertools.repeat(CHUNK_TOKENS), cold[0][:known]) == cold


def test_a_full_context_can_be_used_to_the_last_cell(slot: Slot) -> None:
    pages, _ = compute(slot, list(range(100, 100 + CONTEXT)), itertools.repeat(CHUNK_TOKENS))
    assert len(pages) == CONTEXT // PAGE


def test_an_aborted_slot_stops_and_works_again(slot: Slot) -> None:
    tokens = list(range(100, 140))
    expected = compute(slot, tokens, itertools.repeat(CHUNK_TOKENS))
    slot.begin(GREEDY)
    slot.abort()
    with pytest.raises(InterruptedError):
        slot.advance(tokens[:CHUNK_TOKENS], 0, draw=False)
    slot.clear()
    assert compute(slot, tokens, itertools.repeat(CHUNK_TOKENS)) == expected


def test_a_failed_slot_starts_over(slot: Slot) -> None:
    """Method: a real failure of llama.cpp's, positions with a gap; and a blob that is none."""
    tokens = list(range(100, 140))
    expected = compute(slot, tokens, itertools.repeat(CHUNK_TOKENS))
    slot.begin(GREEDY)
    slot.advance(tokens[:4], 0, draw=False)
    with pytest.raises(EngineError):
        slot.advance(tokens[:4], 50, draw=False)
    slot.clear()
    assert compute(slot, tokens, itertools.repeat(CHUNK_TOKENS)) == expected
    with pytest.raises(EngineError):
        compute(slot, tokens, itertools.repeat(CHUNK_TOKENS), [b"no page"])
    assert compute(slot, tokens, itertools.repeat(CHUNK_TOKENS)) == expected


def test_token_bytes_spell_any_text(model: Model) -> None:
    """Also where a character is several tokens; cyllama's own strings lose those."""
    text = "Ångström 😀 日本語\n\ttabs  and\u00a0odd\x00bytes"
    tokens = model.tokenize(text, add_special=False)
    assert b"".join(map(model.piece, tokens)).decode() == text


@pytest.mark.parametrize(
    ("name", "vocabulary_type", "expected"),
    [
        ("Ġfox", BPE, b" fox"),
        ("ðŁĺ", BPE, b"\xf0\x9f\x98"),
        ("<added 狐>", BPE, "<added 狐>".encode()),
        ("▁fox", SPM, b" fox"),
        ("<0xF0>", SPM, b"\xf0"),
        ("狐", SPM, "狐".encode()),
        ("fox", 3, None),
    ],
)
def test_tokens_are_named_as_their_vocabulary_does(
    name: str, vocabulary_type: int, expected: bytes | None
) -> None:
    """Byte-level BPE has a letter for each byte, SentencePiece a mark for blanks and names for bytes."""
    assert token_bytes(name, vocabulary_type) == expected


def test_control_tokens_are_recognised_and_have_no_text(model: Model) -> None:
    tokens = model.tokenize("<|im_start|>user\nhi<|im_end|>", add_special=False)
    assert b"".join(map(model.piece, tokens)) == b"user\nhi"
    assert model.ends(tokens[-1])
    assert not model.ends(tokens[0])
    assert (model.bos_token, model.eos_token) == ("<|im_start|>", "<|im_end|>")


def test_a_file_that_llama_cannot_load_is_an_engine_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(default_model().read_bytes()[:3_000_000])
    with pytest.raises(EngineError, match=r"cut\.gguf"):
        Model(path)
