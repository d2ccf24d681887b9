"""Which engine a node gets, and why: what `auto` means, and what does not go together.

`auto` takes SGLang where it is installed and there is a GPU for it; a server that is named is attached; the
embedded engine is for everything else. Whoever asked for something that cannot be is told in one line.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from peerinfer.config import EngineConfig
from peerinfer.engine.gpu import find_gpu
from peerinfer.engine.sglang_flags import check_args
from peerinfer.engine.sglang_model import sglang_model
from peerinfer.node.ports import EngineError

KINDS = ("auto", "sglang", "embedded", "simulated")
LOOK_TIMEOUT_S = 30.0

_HAS_SGLANG = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"


@dataclass(frozen=True, slots=True)
class Decision:
    """An engine, chosen."""

    config: EngineConfig
    """`kind` is no longer `auto`, and for an SGLang of the node's own `model` is what it is started with."""
    why: str
    """For people, in a few words."""


def decide_engine(config: EngineConfig) -> Decision:
    """Settle what the config leaves open. Looks at this machine; starts and loads nothing.

    Raises:
        EngineError: there is no such engine, or it cannot be had here; the message says what to do.
    """
    if config.kind not in KINDS:
        raise EngineError(f"there is no engine {config.kind!r}; choose {', '.join(KINDS)}")
    if config.url and config.kind not in ("auto", "sglang"):
        raise EngineError(
            f"--engine-url names a server, and --engine {config.kind} needs none: give one of them"
        )
    if config.url:
        return _attached(config)
    if config.kind == "sglang":
        return _managed(config, "as asked for")
    if config.kind == "auto":
        return _automatic(config)
    _refuse_args(config, "as asked for")
    return Decision(config, "as asked for")


def _attached(config: EngineConfig) -> Decision:
    if config.args:
        raise EngineError(
            "flags behind -- are for an SGLang that peerinfer starts; the one at --engine-url runs"
        )
    return Decision(
        replace(config, kind="sglang", url=_base_url(config.url)), f"it is attached at {config.url}"
    )


def _base_url(url: str) -> str:
    """Scheme, host and port; clients' base URLs, which end in `/v1`, are welcome."""
    parts = urlsplit(url)
    try:
        complete = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is no number, or too large
        complete = False
    if not complete or parts.query or parts.fragment:
        raise EngineError(f"--engine-url: '{url}' is no URL of a server, such as http://127.0.0.1:30000")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _managed(config: EngineConfig, why: str) -> Decision:
    check_args(config.args)
    if missing := _why_no_sglang(config):
        raise EngineError(
            f"{missing}: pip install 'peerinfer[sglang]' where there is a GPU; without one, run "
            "`make sglang-cpu` and give --engine-python .venv-sglang/bin/python"
        )
    return Decision(replace(config, kind="sglang", model=sglang_model(config.model)), why)


def _automatic(config: EngineConfig) -> Decision:
    gpu = find_gpu()
    embedded = replace(config, kind="embedded")
    if Path(config.model).suffix == ".gguf":
        _refuse_args(config, "the model is a GGUF file")
        return Decision(embedded, "the model is a GGUF file")
    why_not = "this machine has no GPU" if gpu is None else _why_no_sglang(config)
    if not why_not:
        return _managed(config, f"SGLang is installed and there is a GPU ({gpu})")
    _refuse_args(config, why_not)
    if "/" in config.model and not Path(config.model).is_file():
        raise EngineError(
            f"--model {config.model} is for SGLang, but {why_not}; the embedded engine takes a GGUF file"
        )
    return Decision(embedded, why_not)


def _refuse_args(config: EngineConfig, why: str) -> None:
    if config.args:
        kind = "embedded" if config.kind == "auto" else config.kind
        raise EngineError(
            f"flags behind -- are for SGLang, and the engine is {kind} ({why}); --engine sglang takes them"
        )


def _why_no_sglang(config: EngineConfig) -> str:
    """Why SGLang cannot be started; empty if it is installed. Raises `EngineError`: that Python is none."""
    if not config.python:
        found = importlib.util.find_spec("sglang") is not None
        return "" if found else f"SGLang is not installed in {sys.prefix}"
    try:
        looked = subprocess.run(
            [config.python, "-c", _HAS_SGLANG], capture_output=True, timeout=LOOK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"--engine-python: {config.python} is no Python that runs ({error})") from error
    return f"SGLang is not installed for {config.python}" if looked.returncode else ""
