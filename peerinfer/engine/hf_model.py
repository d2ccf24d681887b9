"""A model's directory as Hugging Face lays it out: what its tokeniser, template, shape and weights are.

The files say it before an engine has started, so that a node can tokenise and find its peers while it loads.
Two nodes trust each other's page keys only where all of it is equal (core/fingerprint.py). Weights are
gigabytes, so of a file only its size, its header and samples are hashed; a model from the hub is named by
its commit, since its weights may not have arrived yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peerinfer.node.ports import EngineError

_FORMAT = "1"
"""Rises when equal tokens and weights no longer mean equal pages."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_HEADER_BYTES = 64 * 1024
_SAMPLES = 8
_SAMPLE_BYTES = 4096
_DESCRIPTION = ("*.json", "*.jinja", "tokenizer.model")
"""What of a model on the hub is fetched before its engine fetches the rest."""
_VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")
"""Members of a config that differ between copies of one model; the precision is told apart below."""
_SNAPSHOT = re.compile(r"models--(.+)/snapshots/([0-9a-f]+)/?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class HfModel:
    """What the files say."""

    directory: Path
    config: Mapping[str, object]
    chat_template: str | None
    """Jinja source; None where the model has none, or one per purpose."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """By name, as templates use them: `bos_token`, `eos_token` …"""
    weights: str
    """Names the weights."""

    @property
    def tokenizer_file(self) -> Path:
        """The fast tokeniser's description."""
        return self.directory / "tokenizer.json"

    @property
    def vocabulary(self) -> int | None:
        """Tokens that the model has embeddings for."""
        return self._number("vocab_size")

    def fingerprint_fields(self, *, page_size: int, precision: str = "") -> dict[str, str]:
        """What must be equal on two nodes; `precision` names what an engine makes of the weights' types."""
        own = self.config.get("torch_dtype") or self.config.get("dtype") or ""
        shape = {name: value for name, value in self.config.items() if name not in _VOLATILE}
        template = self.chat_template or ""
        return {
            "tokenizer": _hash(_read(self.tokenizer_file)) if self.tokenizer_file.exists() else "",
            "chat_template": _hash(template.encode()) if template else "",
            "config": _hash(json.dumps(shape, sort_keys=True).encode()),
            "weights": f"{self.weights} {precision or own}".strip(),
            "page_size": str(page_size),
            "format": _FORMAT,
        }

    def _number(self, name: str) -> int | None:
        text = self.config.get("text_config")
        nested = text.get(name) if isinstance(text, Mapping) else None
        value = self.config.get(name, nested)
        return value if type(value) is int else None


def read_model(directory: Path, *, chat_template: str | None = None) -> HfModel:
    """The description of a model; `chat_template` replaces its own. Raises `EngineError` if it is none."""
    if not (directory / "config.json").exists():
        raise EngineError(f"{directory} has no config.json: it is no model's directory")
    tokenizer_config = _json(directory / "tokenizer_config.json")
    return HfModel(
        directory=directory,
        config=_json(directory / "config.json"),
        chat_template=chat_template or _chat_template(directory, tokenizer_config),
        special_tokens=_special_tokens({**_json(directory / "special_tokens_map.json"), **tokenizer_config}),
        weights=_weights(directory),
    )


def find_directory(model: str) -> Path | None:
    """The model's files on this machine: a directory, or what the hub's cache has of that name."""
    if os.path.isdir(model):
        return Path(model)
    cache = _hub_cache() / f"models--{model.replace('/', '--')}"
    reference = cache / "refs" / "main"
    if not reference.exists():
        return None
    snapshot = cache / "snapshots" / reference.read_text(encoding="utf-8").strip()
    return snapshot if (snapshot / "config.json").exists() else None


def fetch_description(model: str) -> Path:
    """The same, fetched from the hub where it is not here; without weights. Blocks; raises `EngineError`."""
    if (found := find_directory(model)) is not None:
        return found
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, allow_patterns=list(_DESCRIPTION)))
    # The hub's client raises what it likes: its own errors, those of its HTTP library, OSError, ValueError.
    except Exception as error:
        why = str(error).strip().partition("\n")[0]
        raise EngineError(f"{model} is no directory here, and the hub does not give it: {why}") from error


def _hub_cache() -> Path:
    if found := os.environ.get("HF_HUB_CACHE"):
        return Path(found)
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    return Path(home) / "hub"


def _chat_template(directory: Path, tokenizer_config: Mapping[str, object]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    return template if isinstance(template, str) else None


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    tokens = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens


def _weights(directory: Path) -> str:
    if snapshot := _SNAPSHOT.search(directory.as_posix()):
        return f"{snapshot[1].replace('--', '/')}@{snapshot[2][:16]}"
    digest = hashlib.blake2b(digest_size=16)
    files = sorted(file for file in directory.iterdir() if file.suffix in _WEIGHTS)
    if not files:
        raise EngineError(f"{directory} has no weights ({', '.join(_WEIGHTS)})")
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as data:
            digest.update(data.read(_HEADER_BYTES))
            for sample in range(1, _SAMPLES + 1):
                data.seek(max(0, size * sample // _SAMPLES - _SAMPLE_BYTES))
                digest.update(data.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _json(file: Path) -> dict[str, object]:
    if not file.exists():
        return {}
    try:
        value = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{file} is no JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error.strerror}") from error


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
