"""Bytes that are nearly right: what a parser's writer did not think of lies close to what it expects.

Half of the cases change bytes (flips, cuts, repetitions, pieces of other inputs), the other half the values
behind them: a payload is decoded with the codec of its target, a few places of the tree are replaced,
removed, repeated or nested, and it is written again. All draws come from one seeded generator, so a case is
named by its target, seed and number.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import cbor2
import msgpack

BYTES_MAX = 64 * 1024
INTERESTING_BYTES = (
    b"\x00", b"\xff", b"\x7f", b"\x80", b"\x1b", b"\x9f", b"\xbf", b"\xf7", b"\xfb\x7f\xf8" + bytes(6),
    b"\xff" * 8, b"\x80" * 9 + b"\x01", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r\n", b"\n\n",
    b"data: ", b"[DONE]", b"\\ud800", b"\\u0000", b"1e999", b"-0", b"NaN", b"9" * 400, b'"', b"{", b"[" * 40,
    b"/", b"/p2p/", b"/ip4/", b"/ip6/", b"/dns4/", b"/tcp/", b"0.0.0.0", b"::", b"%25", b"\xe2\x80\xa8",
)  # fmt: skip
INTERESTING_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 0.0, -0.0, 1e-320, 1e308,
    float("inf"), float("nan"), "", " ", "\x00", "\x1b[2J", "ä", "\U0001f600", "\u2028", "a" * 300, "1",
    "null", [], {}, [[]], [None], [0] * 40, {"": 0}, {"a": {"a": {"a": {}}}}, "content", "index",
    "BlockStored", "request", "text",
)  # fmt: skip
LONE_SURROGATE = "\ud800"

Codec = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]


def _json_dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


CODECS: dict[str, Codec] = {
    "json": (json.loads, _json_dumps),
    "cbor": (cbor2.loads, cbor2.dumps),
    "msgpack": (msgpack.unpackb, msgpack.packb),
}


class Mutator:
    """Draws inputs for one target."""

    def __init__(self, rng: random.Random, *, codec: str | None) -> None:
        self._rng = rng
        self._codec = CODECS.get(codec or "")
        self._has_surrogates = codec == "json"

    def mutated(self, pool: Sequence[bytes]) -> bytes:
        """An input made of one of the pool's."""
        rng = self._rng
        payload = pool[rng.randrange(len(pool))]
        if self._codec is not None and rng.random() < 0.5:
            payload = self._changed_values(payload, pool)
            if rng.random() < 0.8:
                return payload[:BYTES_MAX]
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            payload = self._changed_bytes(payload, pool)
        return payload[:BYTES_MAX]

    def _changed_bytes(self, payload: bytes, pool: Sequence[bytes]) -> bytes:
        rng = self._rng
        at = rng.randrange(len(payload) + 1)
        match rng.randrange(8):
            case 0:
                return payload[:at]
            case 1:
                return payload[:at] + rng.choice(INTERESTING_BYTES) + payload[at:]
            case 2:
                piece = rng.choice(INTERESTING_BYTES)
                return payload[:at] + piece + payload[at + len(piece) :]
            case 3:
                end = at + rng.randrange(1, 16)
                return payload[:at] + payload[end:]
            case 4:
                end = at + rng.randrange(1, 32)
                return payload[:end] + payload[at:end] * rng.randrange(1, 4) + payload[end:]
            case 5:
                other = pool[rng.randrange(len(pool))]
                begin = rng.randrange(len(other) + 1)
                return payload[:at] + other[begin : begin + rng.randrange(1, 64)] + payload[at:]
            case _:
                flipped = bytearray(payload or b"\x00")
                flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
                return bytes(flipped)

    def _changed_values(self, payload: bytes, pool: Sequence[bytes]) -> bytes:
        """The payload with other values in it; unchanged where it cannot be read or written."""
        assert self._codec is not None
        loads, dumps = self._codec
        try:
            value = loads(payload)
            for _ in range(self._rng.choice((1, 1, 2, 4))):
                value = self._changed(value)
            if self._rng.random() < 0.05:
                value = self._grafted(value, loads(pool[self._rng.randrange(len(pool))]))
            return dumps(value)
        except Exception:  # an input of the pool that no codec reads, or a value that none writes
            return payload

    def _changed(self, value: Any) -> Any:
        """The tree with one place changed, drawn on the way down."""
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.85:
            key = rng.choice(list(value))
            return self._changed_map(value, key)
        if isinstance(value, list) and value and rng.random() < 0.85:
            at = rng.randrange(len(value))
            if rng.random() < 0.2:
                return value[:at] + [value[at]] * rng.choice((0, 2, 3, 50)) + value[at + 1 :]
            return [*value[:at], self._changed(value[at]), *value[at + 1 :]]
        return self._other(value)

    def _changed_map(self, value: dict[Any, Any], key: Any) -> dict[Any, Any]:
        rng, changed = self._rng, dict(value)
        match rng.randrange(10):
            case 0:
                del changed[key]
            case 1:
                changed[rng.choice(list(value))] = value[key]
            case 2:
                changed[self._other(key) if isinstance(key, str) else "k"] = changed.pop(key)
            case _:
                changed[key] = self._changed(value[key])
        return changed

    def _other(self, value: Any) -> Any:
        """Something in place of a leaf: close to it, or nothing like it."""
        rng = self._rng
        if self._has_surrogates and rng.random() < 0.03:
            return LONE_SURROGATE
        if rng.random() < 0.4:
            if isinstance(value, bool):
                return not value
            if isinstance(value, int):
                return value + rng.choice((-1, 1, 256, -value, 2**32, -(2**32)))
            if isinstance(value, float):
                return value * rng.choice((-1.0, 0.0, 2.0, 1e300, 1e-300))
            if isinstance(value, str):
                at = rng.randrange(len(value) + 1)
                return value[:at] + rng.choice(("", "x", "\x00", "é", "/", value)) + value[at + 1 :]
            if isinstance(value, bytes):
                return self._changed_bytes(value, [value])
        if rng.random() < 0.1:
            for _ in range(rng.choice((2, 9, 70, 990))):
                value = [value] if rng.random() < 0.5 else {"a": value}
            return value
        return rng.choice(INTERESTING_VALUES)

    def _grafted(self, value: Any, other: Any) -> Any:
        if isinstance(value, dict) and isinstance(other, dict):
            return {**value, **other}
        return [value, other] if self._rng.random() < 0.5 else other
