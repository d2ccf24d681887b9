"""Which model SGLang is given, and where its default lies.

The default is the same model that the embedded engine has, SmolLM2-135M-Instruct: the directory that
`make sglang-cpu` made of it, or else the hub's, which SGLang fetches by itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from peerinfer.engine.model_store import DEFAULT_MODEL, models_dir
from peerinfer.node.ports import EngineError

DEFAULT_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"

_ID = re.compile(r"[\w.-]+/[\w.-]+")


def converted_model_path() -> Path:
    """Where the default model for SGLang on a CPU is, or will be."""
    return models_dir() / "sglang" / DEFAULT_MODEL


def sglang_model(named: str) -> str:
    """The directory, or the id on the hub, of the model that is named, or of the default one.

    Raises:
        EngineError: there is no such directory, and it is no id either.
    """
    if named in ("", DEFAULT_MODEL):
        converted = converted_model_path()
        return str(converted) if converted.is_dir() else DEFAULT_ID
    path = Path(named).expanduser()
    if (path / "config.json").is_file():
        return str(path)
    if path.is_dir():
        raise EngineError(f"--model: {named} holds no config.json; SGLang wants a model as the hub keeps it")
    if path.is_file():
        raise EngineError(
            f"--model: {named} is a file; SGLang wants a directory or an id such as {DEFAULT_ID}"
        )
    if _ID.fullmatch(named):
        return named
    raise EngineError(f"--model: there is no directory {named}, and an id looks like {DEFAULT_ID}")
