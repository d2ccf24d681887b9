"""`peerinfer model`, and which file a node takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peerinfer.cli.errors import CommandError
from peerinfer.cli.main import peerinfer
from peerinfer.cli.model import find_model
from peerinfer.engine.model_store import DEFAULT_MODEL, default_model_path


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for models."""
    monkeypatch.setenv("PEERINFER_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(peerinfer, ["model", *arguments])


def with_default(models: Path) -> Path:
    """The default model's file, as far as its name goes."""
    models.mkdir()
    default_model_path().write_bytes(bytes(2_000_000))
    return default_model_path()


def test_models_are_listed_with_the_name_they_are_served_under(models: Path) -> None:
    default = with_default(models)
    (models / "other.gguf").write_bytes(b"x")
    assert run("list").stdout.splitlines() == [
        f"{DEFAULT_MODEL}  2 MB  {default}",
        f"other  0 MB  {models / 'other.gguf'}",
    ]
    listed = json.loads(run("list", "--json").stdout)["models"]
    assert listed[0] == {"name": DEFAULT_MODEL, "path": str(default), "bytes": 2_000_000}


def test_no_models_are_told_with_what_to_do(models: Path) -> None:
    result = run("list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "run `peerinfer model fetch`" in result.stderr
    assert json.loads(run("list", "--json").stdout) == {"models": []}


def test_fetching_what_is_here_prints_its_path_at_once(models: Path) -> None:
    default = with_default(models)
    result = run("fetch")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{default}\n", "")
    assert run("path").stdout == f"{default}\n"


def test_a_place_that_cannot_hold_models_is_status_1(models: Path) -> None:
    models.touch()
    result = run("fetch")
    assert result.exit_code == 1
    assert "cannot keep models in" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_node_takes_the_named_file_or_the_default_one(models: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="peerinfer model fetch"):
        find_model(None)
    default = with_default(models)
    assert find_model(None) == find_model(DEFAULT_MODEL) == default
    (tmp_path / "mine.gguf").touch()
    assert find_model(str(tmp_path / "mine.gguf")) == tmp_path / "mine.gguf"
    with pytest.raises(CommandError, match=r"no file no\.gguf"):
        find_model("no.gguf")
