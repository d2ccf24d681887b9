"""Whatever the bytes, every decoder ends with a value in its ranges or with WireError, and cheaply."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from peerinfer.core.errors import WireError
from peerinfer.core.fingerprint import decode_hello, encode_hello
from peerinfer.core.frame_codec import decode_frame, encode_frame
from peerinfer.core.snapshot import decode_snapshot, encode_snapshot
from peerinfer.core.wire import DEPTH_MAX, ITEMS_MAX, read_map

LIMIT = 256 * 1024
VECTORS = Path(__file__).parents[1] / "vectors"


def again_frame(payload: bytes) -> tuple[object, object]:
    frame = decode_frame(payload)
    return frame, decode_frame(encode_frame(frame))


def again_snapshot(payload: bytes) -> tuple[object, object]:
    snapshot = decode_snapshot(payload, bytes_max=LIMIT)
    return snapshot, decode_snapshot(encode_snapshot(snapshot, bytes_max=2 * LIMIT), bytes_max=2 * LIMIT)


def again_hello(payload: bytes) -> tuple[object, object]:
    hello = decode_hello(payload, bytes_max=LIMIT)
    return hello, decode_hello(encode_hello(hello), bytes_max=LIMIT)


DECODERS: dict[str, Callable[[bytes], tuple[object, object]]] = {
    "frames.json": again_frame,
    "snapshots.json": again_snapshot,
    "hello.json": again_hello,
}
CORPUS = [
    (file_name, bytes.fromhex(case["wire"]))
    for file_name in DECODERS
    for case in json.loads((VECTORS / file_name).read_text(encoding="utf-8"))
]
corpus = st.sampled_from(CORPUS)
decoders = st.sampled_from(sorted(DECODERS))


def decode(file_name: str, payload: bytes) -> bool:
    """Whether the payload is taken; then what it says can be said again, so each field is in its range."""
    try:
        first, second = DECODERS[file_name](payload)
    except WireError as error:
        reason = str(error)
    else:
        assert first == second
        return True
    assert len(reason) < 200, "what a peer sent is not quoted at length in our logs"
    return False


@pytest.mark.parametrize(("file_name", "wire"), CORPUS)
def test_a_truncated_payload_is_refused_wherever_it_ends(file_name: str, wire: bytes) -> None:
    assert decode(file_name, wire)
    assert not any(decode(file_name, wire[:length]) for length in range(len(wire)))


@pytest.mark.parametrize(("file_name", "wire"), CORPUS)
def test_bytes_after_the_map_are_refused(file_name: str, wire: bytes) -> None:
    assert not any(decode(file_name, wire + bytes([byte])) for byte in range(256))


@given(corpus, st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bits_are_refused_or_read_within_the_ranges(
    case: tuple[str, bytes], flips: list[tuple[int, int]]
) -> None:
    file_name, wire = case
    flipped = bytearray(wire)
    for position, mask in flips:
        flipped[position % len(wire)] ^= mask
    decode(file_name, bytes(flipped))


@given(decoders, st.binary(max_size=100))
def test_random_bytes_are_refused(file_name: str, payload: bytes) -> None:
    assert not decode(file_name, payload)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=40)
    | st.just(cbor2.undefined)
    | st.integers(32, 255).map(cbor2.CBORSimpleValue)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(corpus, st.data(), VALUES)
def test_a_field_of_any_other_type_is_refused_or_read_within_its_range(
    case: tuple[str, bytes], data: st.DataObject, value: object
) -> None:
    file_name, wire = case
    fields = cbor2.loads(wire)
    fields[data.draw(st.sampled_from(sorted(fields)))] = value
    decode(file_name, cbor2.dumps(fields))


@given(decoders, VALUES)
def test_any_other_cbor_is_refused(file_name: str, value: object) -> None:
    assert not decode(file_name, cbor2.dumps(value))


HOSTILE = {
    "nothing": b"",
    "deep arrays": b"\x81" * 100_000 + b"\x00",
    "deep maps": b"\xa1\x61a" * 50_000 + b"\x00",
    "deep tags": b"\xc1" * 100_000 + b"\x00",
    "an array of 2^64 - 1": b"\x9b" + b"\xff" * 8,
    "a map of 2^40": b"\xbb" + (2**40).to_bytes(8, "big"),
    "a byte string of 2^62": b"\xa1\x61a\x5b" + (2**62).to_bytes(8, "big") + b"x",
    "a text of 2^32 - 1": b"\xa1\x61a\x7a" + b"\xff" * 4 + b"x",
    "a quarter of a million empty arrays": b"\x9a\x00\x03\xf0\x00" + b"\x80" * 0x3F000,
    "an array without end": b"\x9f\x00\xff",
    "a map without end": b"\xbf\x61a\x00\xff",
    "a text without end": b"\xa1\x61a\x7f\x61b\xff",
    "a byte string without end": b"\xa1\x61a\x5f\x41b\xff",
    "a break": b"\xff",
    "a reserved head": b"\x1c",
    "half a head": b"\x1b\x00",
    "text that is no UTF-8": b"\xa1\x61a\x61\xff",
    "a lone surrogate": b"\xa1\x61a\x63\xed\xa0\x80",
    "a key twice": b"\xa2\x61a\x00\x61a\x01",
    "a key that is a number": b"\xa1\x00\x00",
    "a key that is a map": b"\xa1\xa0\x00",
    "a date": b"\xa1\x61a\xc1\x00",
    "a big number": b"\xa1\x61a\xc2\x48" + b"\xff" * 8,
    "a decimal of a million digits": b"\xa1\x61a\xc4\x82\x1a\x00\x0f\x42\x40\x01",
    "a bigfloat of 2^2^31": b"\xa1\x61a\xc5\x82\x1a\x7f\xff\xff\xff\x01",
    "a regular expression": b"\xa1\x61a\xd8\x23\x66(a+)+$",
    "a shared value": b"\xa1\x61a\xd8\x1c\x81\xd8\x1d\x00",
    "string references": b"\xd9\x01\x00\xa1\x61a\xd8\x19\x00",
    "a set": b"\xa1\x61a\xd9\x01\x02\x81\x00",
    "self-described": b"\xd9\xd9\xf7\xa1\x61a\x00",
    "an unknown tag": b"\xa1\x61a\xda\xff\xff\xff\xff\x00",
    "a number": b"\x00",
    "a list": b"\x80",
    "an empty map": b"\xa0",
}


@pytest.mark.parametrize("file_name", sorted(DECODERS))
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_cbor_is_refused(name: str, file_name: str) -> None:
    """Goal: no kind of CBOR that a general decoder would expand, resolve or compile gets that far."""
    assert not decode(file_name, HOSTILE[name])


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_cbor_costs_no_memory(name: str) -> None:
    """Goal: nothing is allocated for a declared length, nor for many items that would be refused."""
    tracemalloc.start()
    try:
        for file_name in DECODERS:
            decode(file_name, HOSTILE[name])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


@given(st.binary(max_size=60) | st.builds(cbor2.dumps, VALUES))
@example(b"\xa1\x61a\xf8\xff")
@example(b"\xa1\x41a\x00")
def test_the_check_of_heads_agrees_with_the_decoder(payload: bytes) -> None:
    """Goal: the walk over heads never lets the decoder see a map that it would read differently."""
    try:
        fields = read_map(payload, bytes_max=100)
    except WireError:
        return
    assert repr(dict(fields.items())) == repr(cbor2.loads(payload))


def test_a_payload_has_a_limit_of_items_and_of_depth() -> None:
    def nested(depth: int) -> bytes:
        return b"\xa1\x61a" * depth + b"\xa0"

    most = {f"{number}": 0 for number in range((ITEMS_MAX - 1) // 2)}
    assert dict(read_map(cbor2.dumps(most), bytes_max=LIMIT).items()) == most
    assert read_map(nested(DEPTH_MAX), bytes_max=LIMIT).has("a")
    with pytest.raises(WireError, match="items"):
        read_map(cbor2.dumps({**most, "one": 0, "two": [0]}), bytes_max=LIMIT)
    with pytest.raises(WireError):
        read_map(nested(DEPTH_MAX + 1), bytes_max=LIMIT)


def test_a_version_that_is_no_number_is_no_version() -> None:
    with pytest.raises(WireError, match="v:"):
        decode_snapshot(cbor2.dumps({"v": "1"}), bytes_max=LIMIT)
