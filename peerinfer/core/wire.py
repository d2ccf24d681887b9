"""Reading CBOR maps from peers, field by field and by type; what snapshots, frames and hellos share.

The rule: whatever the bytes, reading ends with a value in its documented range or with WireError, and
costs no more than the bytes it was given. A payload is one map of at most `ITEMS_MAX` data items, without
tags (so no dates, big numbers, shared references …) and without indefinite lengths. That is checked by
walking the item heads before anything is decoded, so neither a declared length nor a million empty
arrays in a megabyte cost memory. Unknown fields are ignored, and null is the same as absent: later
versions may add fields. Writing clamps what was measured into its range, since an estimate that is off
must not stop a node; everything else out of range is our bug, and asserted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import cbor2

from peerinfer.core.errors import WireError
from peerinfer.core.page_keys import KEY_BYTES
from peerinfer.core.types import Load, PageKey

ITEMS_MAX = 256
"""Data items in a payload: each map, key, array, string and number is one."""
DEPTH_MAX = 8
"""The maps and arrays that a data item may be inside of."""
UINT_MAX = 2**53 - 1
"""The largest counter or size: what JSON and JavaScript still carry exactly."""
RATE_MAX = 1e9
"""Tokens per second."""
RATE_MIN = 1e-3
"""The smallest rate that was measured, so that a wait computed from it stays finite; 0 is unmeasured."""
ID_CHARS_MAX = 64

_BYTES, _TEXT, _ARRAY, _MAP, _TAG = range(2, 7)  # RFC 8949 §3.1: the major types that are not just a head


def read_map(payload: bytes, *, bytes_max: int) -> Fields:
    """The fields of a payload that is exactly one CBOR map. Raises WireError on anything else."""
    if len(payload) > bytes_max:
        raise WireError(f"{len(payload)} bytes, more than {bytes_max}")
    _check_heads(payload)
    try:
        fields = cbor2.loads(
            payload, max_depth=DEPTH_MAX, allow_duplicate_keys=False, strict_hashable_types=True
        )
    except cbor2.CBORDecodeError as error:
        raise WireError("not CBOR, or a map with a key twice or a key that is no string") from error
    return _as_map(fields, "payload")


def _check_heads(payload: bytes) -> None:
    """Refuse trailing or missing bytes, too many items, tags and indefinite lengths; reads no content."""
    position, end, missing = 0, len(payload), 1
    for _ in range(ITEMS_MAX):
        if position >= end:
            raise WireError("truncated")
        head = payload[position]
        position += 1
        missing -= 1
        major, argument = head >> 5, head & 31
        if argument >= 24:
            if argument > 27:
                raise WireError("an indefinite length or a reserved head")
            width = 1 << (argument - 24)
            argument = int.from_bytes(payload[position : position + width], "big")
            position += width
        if major in (_BYTES, _TEXT):
            position += argument
        elif major == _ARRAY:
            missing += argument
        elif major == _MAP:
            missing += 2 * argument
        elif major == _TAG:
            raise WireError("a tag")
        if not missing:
            break
    else:
        raise WireError(f"more than {ITEMS_MAX} data items")
    if position != end:
        raise WireError("truncated" if position > end else "bytes after the map")


def _as_map(value: object, name: str) -> Fields:
    if type(value) is not dict:
        raise WireError(f"{name}: not a map")
    return Fields(value)


class Fields:
    """One map's fields. Each method raises WireError, naming the field, for another type or range.

    `default` is for fields that may be absent.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[Any, Any]) -> None:
        self._fields = fields

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def uint(self, name: str, *, least: int = 0, most: int = UINT_MAX, default: int | None = None) -> int:
        """A whole number; true and 1.0 are none."""
        value = self._fields.get(name)
        if value is None:
            value = default
        if type(value) is not int or not least <= value <= most:
            raise WireError(f"{name}: not a whole number from {least} to {most}")
        return value

    def real(self, name: str, *, least: float = 0.0, most: float) -> float:
        """A finite number; a whole one counts, since some encoders write 1.0 as 1."""
        value = self._fields.get(name)
        if type(value) is int:
            value = float(value)
        if type(value) is not float or not least <= value <= most:
            raise WireError(f"{name}: not a number from {least:g} to {most:g}")
        return value

    def rate(self, name: str) -> float:
        """Tokens per second: 0 while it is unmeasured, else in range."""
        value = self.real(name, most=RATE_MAX)
        if 0.0 < value < RATE_MIN:
            raise WireError(f"{name}: neither 0 nor at least {RATE_MIN:g}")
        return value

    def flag(self, name: str) -> bool:
        value = self._fields.get(name)
        if type(value) is not bool:
            raise WireError(f"{name}: neither true nor false")
        return value

    def text(self, name: str, *, chars_max: int, default: str | None = None) -> str:
        """Any Unicode text."""
        value = self._fields.get(name)
        if value is None:
            value = default
        if type(value) is not str or len(value) > chars_max:
            raise WireError(f"{name}: not a text of at most {chars_max} characters")
        return value

    def label(self, name: str, *, chars_max: int = ID_CHARS_MAX) -> str:
        """A name that logs and terminals can show: printable ASCII, not empty."""
        value = self._fields.get(name)
        if not is_label(value, chars_max=chars_max):
            raise WireError(f"{name}: not a text of 1 to {chars_max} printable ASCII characters")
        return str(value)

    def labels(self, name: str, *, items_max: int, chars_max: int) -> tuple[str, ...]:
        value = self._fields.get(name)
        if type(value) is not list or len(value) > items_max:
            raise WireError(f"{name}: not a list of at most {items_max} texts")
        if not all(is_label(item, chars_max=chars_max) for item in value):
            raise WireError(f"{name}: an item is not a text of 1 to {chars_max} printable ASCII characters")
        return tuple(value)

    def blob(self, name: str, *, bytes_max: int, bytes_min: int = 0) -> bytes:
        value = self._fields.get(name)
        if type(value) is not bytes or not bytes_min <= len(value) <= bytes_max:
            raise WireError(f"{name}: not a byte string of {bytes_min} to {bytes_max} bytes")
        return value

    def page_keys(self, name: str, *, bytes_max: int) -> tuple[PageKey, ...]:
        packed = self.blob(name, bytes_max=bytes_max)
        count, rest = divmod(len(packed), KEY_BYTES)
        if rest:
            raise WireError(f"{name}: not {KEY_BYTES} bytes each")
        return struct.unpack(f"<{count}Q", packed)

    def map(self, name: str) -> Fields:
        return _as_map(self._fields.get(name), name)

    def items(self) -> Iterator[tuple[object, object]]:
        """Keys and values as they came, for maps whose keys are data."""
        yield from self._fields.items()

    def load(self, name: str) -> Load:
        fields = self.map(name)
        return Load(
            running=fields.uint("running"),
            queued=fields.uint("queued"),
            queued_prefill_tokens=fields.uint("queued_prefill_tokens"),
            recent_prefill_tokens=fields.uint("recent_prefill_tokens", default=0),
            prefill_tokens_per_s=fields.rate("prefill_tokens_per_s"),
            decode_tokens_per_s=fields.rate("decode_tokens_per_s"),
            slots=fields.uint("slots", least=1),
        )


def is_label(value: object, *, chars_max: int) -> bool:
    """Whether this is a text of 1 to `chars_max` printable ASCII characters."""
    return type(value) is str and 0 < len(value) <= chars_max and value.isascii() and value.isprintable()


def packed_keys(keys: Sequence[PageKey]) -> bytes:
    """Page keys as they go into a map."""
    return struct.pack(f"<{len(keys)}Q", *keys)


def load_fields(load: Load) -> dict[str, object]:
    """A load as it goes into a map."""
    return {
        "running": whole(load.running),
        "queued": whole(load.queued),
        "queued_prefill_tokens": whole(load.queued_prefill_tokens),
        "recent_prefill_tokens": whole(load.recent_prefill_tokens),
        "prefill_tokens_per_s": _clamped_rate(load.prefill_tokens_per_s),
        "decode_tokens_per_s": _clamped_rate(load.decode_tokens_per_s),
        "slots": whole(load.slots, least=1),
    }


def whole(value: int, *, least: int = 0) -> int:
    """A counter or size of our own, on its way out."""
    assert least <= value <= UINT_MAX, f"{value} is not from {least} to {UINT_MAX}"
    return value


def clamped(value: float, *, least: float = 0.0, most: float) -> float:
    """A duration of our own, on its way out; what is no number becomes the least."""
    return min(max(least, value), most)


def _clamped_rate(value: float) -> float:
    return clamped(value, least=RATE_MIN, most=RATE_MAX) if value > 0.0 else 0.0
