"""Fingerprints from model files: cheap, and different whenever a model differs."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peerinfer.engine.gguf import ModelFile, read_model_file
from peerinfer.node.ports import EngineError

_STRING, _ARRAY, _UINT32, _FLOAT = 8, 9, 4, 6


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def model(
    *,
    template: str = "{{ messages }}",
    vocabulary: tuple[str, ...] = ("a", "b"),
    layers: int = 2,
    weights: bytes = b"\1" * 20_000,
    author: str = "someone",
    window: int = 0,
) -> bytes:
    """A file in GGUF format with one tensor."""
    entries = [
        entry("general.architecture", _STRING, text("llama")),
        entry("general.author", _STRING, text(author)),
        entry("llama.block_count", _UINT32, struct.pack("<I", layers)),
        entry("llama.context_length", _UINT32, struct.pack("<I", 512)),
        entry("llama.attention.sliding_window", _UINT32, struct.pack("<I", window)),
        entry("tokenizer.chat_template", _STRING, text(template)),
        entry(
            "tokenizer.ggml.tokens",
            _ARRAY,
            struct.pack("<IQ", _STRING, len(vocabulary)) + b"".join(map(text, vocabulary)),
        ),
        entry("tokenizer.ggml.scores", _ARRAY, struct.pack("<IQ2f", _FLOAT, 2, 0.5, 0.25)),
    ]
    tensor = text("output.weight") + struct.pack("<IQIQ", 1, len(weights), 24, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(entries)) + b"".join(entries) + tensor
    return head + b"\0" * (-len(head) % 32) + weights


def read(tmp_path: Path, data: bytes) -> ModelFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return read_model_file(path)


def test_a_file_says_what_a_node_needs_before_its_engine_starts(tmp_path: Path) -> None:
    file = read(tmp_path, model())
    assert file.chat_template == "{{ messages }}"
    assert file.context_tokens == 512
    assert not file.sliding_window
    assert read(tmp_path, model(window=128)).sliding_window
    assert read(tmp_path, model()) == file


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        (model(vocabulary=("a", "c")), {"tokenizer"}),
        (model(layers=3), {"config"}),
        (model(weights=b"\2" * 20_000), {"weights"}),
        (model(weights=b"\1" * 20_032), {"weights"}),
        (model(template="{{ bos_token }}"), set()),
        (model(author="somebody else"), set()),
    ],
    ids=["vocabulary", "layers", "weights", "shape", "template", "author"],
)
def test_each_hash_covers_its_part_and_no_other(tmp_path: Path, changed: bytes, parts: set[str]) -> None:
    one, other = read(tmp_path, model()), read(tmp_path, changed)
    names = ("tokenizer", "config", "weights")
    assert {name for name in names if getattr(one, name) != getattr(other, name)} == parts


@pytest.mark.parametrize(
    "data", [b"", b"GGML", b"GGUF", b"GGUF" + struct.pack("<IQQ", 9, 0, 0), model()[:-32_000]]
)
def test_what_is_no_model_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(EngineError, match="not a model in GGUF format"):
        read(tmp_path, data)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no-such"):
        read_model_file(tmp_path / "no-such.gguf")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_header_is_refused_or_read_but_never_anything_else(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Method: cut the file or overwrite eight bytes anywhere in its first kilobyte."""
    whole = model()
    at = data.draw(st.integers(0, 600))
    damage = data.draw(st.binary(min_size=0, max_size=8))
    damaged = whole[:at] + damage + whole[at + len(damage) :] if damage else whole[:at]
    with contextlib.suppress(EngineError):
        read(tmp_path, damaged)
