"""Reads what a GGUF file says about its model, without loading it and without llama.cpp.

Only names, metadata and where the tensors lie: enough for the fingerprint fields that a node needs before
its engine starts. Metadata is hashed as the raw bytes of the file, so nothing is lost in decoding it.

Weights are hashed by samples, three of 4 KiB from every tensor, so that a file of many gigabytes costs
milliseconds and no cache of hashes is needed. Models that differ anywhere differ in a whole tensor (training
and quantising change all its blocks), which the samples see; a single flipped bit they need not.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from peerinfer.node.ports import EngineError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS: Mapping[int, str] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_ENTRIES_MAX = 100_000  # guess: real files have some dozens of entries and some hundreds of tensors
_SAMPLE_BYTES = 4096
_ALIGNMENT_DEFAULT = 32  # the GGUF specification's


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    header: bytes
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model's own description of itself, and hashes of its parts."""

    values: Mapping[str, object]
    """Metadata that is a number, a truth value or a text; arrays are hashed only."""
    tokenizer: str
    """Hash of everything about the tokeniser."""
    config: str
    """Hash of the architecture and its dimensions."""
    weights: str
    """Hash of the tensors' names, types and shapes, and of samples of their contents."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the model's own chat template."""
        template = self.values.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @property
    def context_tokens(self) -> int | None:
        """The longest context that the model was trained for."""
        value = self.values.get(f"{self.values.get('general.architecture')}.context_length")
        return value if isinstance(value, int) else None

    @property
    def sliding_window(self) -> bool:
        """Whether attention looks back only so far, so that not every page stays whole."""
        return bool(self.values.get(f"{self.values.get('general.architecture')}.attention.sliding_window"))


def read_model_file(path: Path) -> ModelFile:
    """Read a GGUF file's description; 15-40 ms. Raises `EngineError` if it is none, or cannot be read."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(data)
    except (OSError, ValueError, OverflowError, struct.error) as error:
        raise EngineError(f"{path} is not a model in GGUF format: {error}") from error


def _read(data: mmap.mmap) -> ModelFile:
    if data[:4] != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version, tensor_count, entry_count = struct.unpack_from("<IQQ", data, 4)
    if version not in _VERSIONS:
        raise ValueError(f"version {version} is not known")
    if max(tensor_count, entry_count) > _ENTRIES_MAX:
        raise ValueError("its header is damaged")
    at = 24
    values: dict[str, object] = {}
    raw: dict[str, bytes] = {}
    for _ in range(entry_count):
        name, at = _string(data, at)
        begin = at
        (kind,) = struct.unpack_from("<I", data, at)
        value, at = _value(data, at + 4, kind)
        raw[name] = data[begin:at]
        if kind != _ARRAY:
            values[name] = value
    tensors = []
    for _ in range(tensor_count):
        tensor, at = _tensor(data, at)
        tensors.append(tensor)
    alignment = values.get("general.alignment", _ALIGNMENT_DEFAULT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError("its alignment is damaged")
    begin = -(-at // alignment) * alignment
    architecture = f"{values.get('general.architecture')}."
    return ModelFile(
        values=values,
        tokenizer=_hash(raw, lambda name: name.startswith("tokenizer.") and "chat_template" not in name),
        config=_hash(raw, lambda name: name.startswith(architecture) or name == "general.architecture"),
        weights=_hash_weights(data, begin, tensors),
    )


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    if at + 8 + length > len(data):
        raise ValueError("it ends within its header")
    return data[at + 8 : at + 8 + length].decode("utf-8", "replace"), at + 8 + length


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[object, int]:
    if kind == _STRING:
        return _string(data, at)
    if kind == _ARRAY:
        return None, _array_end(data, at)
    if kind not in _SCALARS:
        raise ValueError(f"its header has a value of the unknown type {kind}")
    form = _SCALARS[kind]
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def _array_end(data: mmap.mmap, at: int) -> int:
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind in _SCALARS:
        at += count * struct.calcsize(_SCALARS[kind])
    elif kind == _STRING:
        length_of = struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + length_of(data, at)[0]
    else:
        raise ValueError(f"its header has an array of the unknown type {kind}")
    if at > len(data):
        raise ValueError("it ends within its header")
    return at


def _tensor(data: mmap.mmap, at: int) -> tuple[_Tensor, int]:
    begin = at
    name, at = _string(data, at)
    (dimensions,) = struct.unpack_from("<I", data, at)
    at += 4 + 8 * dimensions + 4
    (offset,) = struct.unpack_from("<Q", data, at)
    return _Tensor(name, data[begin:at], offset), at + 8


def _hash(raw: Mapping[str, bytes], belongs: Callable[[str], bool]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(filter(belongs, raw)):
        digest.update(name.encode() + b"\0" + raw[name])
    return digest.hexdigest()


def _hash_weights(data: mmap.mmap, begin: int, tensors: list[_Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    placed = sorted(tensors, key=lambda tensor: tensor.offset)
    ends = [begin + tensor.offset for tensor in placed[1:]] + [len(data)]
    hashes = {}
    for tensor, end in zip(placed, ends, strict=True):
        first = begin + tensor.offset
        size = end - first
        if size < 0 or end > len(data):
            raise ValueError("it is cut off: tensors lie beyond its end")
        own = hashlib.blake2b(tensor.header, digest_size=16)
        for start in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
            own.update(data[first + start : first + min(size, start + _SAMPLE_BYTES)])
        hashes[tensor.name] = own.digest()
    for name in sorted(hashes):
        digest.update(hashes[name])
    return digest.hexdigest()
