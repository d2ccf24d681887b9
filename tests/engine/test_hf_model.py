"""A model's directory: what two nodes must have alike, and where it is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from peerinfer.engine.hf_model import fetch_description, find_directory, read_model
from peerinfer.node.ports import EngineError
from tests.engine.hf_files import VOCABULARY, make_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


def fields(directory: Path, **options: str) -> dict[str, str]:
    return read_model(directory).fingerprint_fields(page_size=16, **options)


def test_the_files_say_what_the_model_is(directory: Path) -> None:
    model = read_model(directory)
    assert model.vocabulary == VOCABULARY
    assert model.special_tokens == {"bos_token": "<|end|>", "eos_token": "<|im_end|>"}
    assert model.chat_template is not None
    assert model.chat_template.startswith("{%- if tools")
    told = fields(directory)
    assert set(told) == {"tokenizer", "chat_template", "config", "weights", "page_size", "format"}
    assert told["page_size"] == "16"
    assert told["weights"].endswith(" bfloat16")
    assert fields(directory, precision="float16")["weights"].endswith(" float16")


def test_copies_are_the_same_model(directory: Path, tmp_path: Path) -> None:
    """Also where another program saved the config, under another path."""
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(directory, copy)
    config = json.loads((copy / "config.json").read_text())
    config |= {"_name_or_path": "elsewhere", "transformers_version": "4.1"}
    (copy / "config.json").write_text(json.dumps(config, indent=4))
    assert fields(copy) == fields(directory)


def change_weights(directory: Path) -> None:
    file = directory / "model.safetensors"
    changed = bytearray(file.read_bytes())
    changed[-100] ^= 1
    file.write_bytes(changed)


def grow_weights(directory: Path) -> None:
    with (directory / "model.safetensors").open("ab") as file:
        file.write(b"x")


def change_config(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"rope_theta": 1.0}))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (change_weights, "weights"),
        (grow_weights, "weights"),
        (change_config, "config"),
        (lambda d: (d / "chat_template.jinja").write_text("{{ messages }}"), "chat_template"),
        (lambda d: (d / "tokenizer.json").write_text("{}"), "tokenizer"),
    ],
)
def test_a_difference_shows_in_its_field(
    directory: Path, change: Callable[[Path], object], field: str
) -> None:
    before = fields(directory)
    change(directory)
    after = fields(directory)
    assert {name for name in before if before[name] != after[name]} == {field}


def test_a_model_of_the_hub_is_named_by_its_commit(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights may not have arrived yet when peers are told."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert find_directory("org/tiny") is None
    cache = tmp_path / "hub" / "models--org--tiny"
    snapshot = cache / "snapshots" / "0123456789abcdef0123"
    shutil.copytree(directory, snapshot)
    (snapshot / "model.safetensors").unlink()
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0123456789abcdef0123\n")
    assert find_directory("org/tiny") == fetch_description("org/tiny") == snapshot
    assert fields(snapshot)["weights"] == "org/tiny@0123456789abcdef bfloat16"
    assert find_directory(str(directory)) == directory


def test_what_is_no_model_is_said_in_one_line(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no config\.json"):
        read_model(tmp_path)
    (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(EngineError, match="is no JSON"):
        read_model(directory)
    (directory / "tokenizer_config.json").unlink()
    (directory / "model.safetensors").unlink()
    with pytest.raises(EngineError, match="no weights"):
        read_model(directory)


def test_a_template_may_be_in_the_config_or_replaced(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    assert read_model(directory).chat_template is None
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ bos_token }}"
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_model(directory).chat_template == "{{ bos_token }}"
    assert read_model(directory, chat_template="mine").chat_template == "mine"
