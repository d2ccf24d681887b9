"""The snapshot codec: round trips, the cut, and what a field may be."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.core.errors import WireError, WireVersionError
from peerinfer.core.snapshot import Snapshot, decode_snapshot, encode_snapshot
from peerinfer.core.types import Load, NodeState

LIMIT = 256 * 1024
UINT = st.integers(0, 2**53 - 1)
RATE = st.just(0.0) | st.floats(1e-3, 1e9)
LOADS = st.builds(
    Load,
    running=UINT,
    queued=UINT,
    queued_prefill_tokens=UINT,
    prefill_tokens_per_s=RATE,
    decode_tokens_per_s=RATE,
    slots=st.integers(1, 2**53 - 1),
)
LABEL = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)
TREES = st.none() | st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=60).map(tuple)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    keys = draw(TREES)
    beyond = draw(st.integers(0, 3))
    return Snapshot(
        addrs=tuple(draw(st.lists(LABEL, max_size=8))),
        incarnation=draw(UINT),
        seq=draw(UINT),
        tree_version=draw(UINT),
        next_within_s=draw(st.floats(0.001, 3600)),
        load=draw(LOADS),
        paused_for_s=draw(st.floats(0, 3600)),
        state=draw(st.sampled_from(NodeState)),
        reuse_tokens=draw(st.integers(1, 2**53 - 1)),
        keys=keys,
        cut=keys is not None and beyond > 0,
        pages=beyond + len(keys or ()),
    )


PLAIN = Snapshot(
    addrs=("/ip4/10.0.0.1/tcp/4001",),
    incarnation=5,
    seq=6,
    tree_version=7,
    next_within_s=1.0,
    load=Load(running=1, prefill_tokens_per_s=480.0),
    paused_for_s=0.0,
    state=NodeState.ALIVE,
    reuse_tokens=1,
    keys=(3, 1, 2),
    cut=False,
    pages=3,
)


def with_field(name: str, value: object, *, of: Snapshot = PLAIN) -> bytes:
    return cbor2.dumps({**cbor2.loads(encode_snapshot(of, bytes_max=LIMIT)), name: value})


def with_load(name: str, value: object) -> bytes:
    load = cbor2.loads(encode_snapshot(PLAIN, bytes_max=LIMIT))["load"]
    return with_field("load", {**load, name: value})


@given(snapshots())
def test_what_was_encoded_is_decoded_alike(snapshot: Snapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot, bytes_max=LIMIT), bytes_max=LIMIT) == snapshot


@given(snapshots(), st.integers(0, 900))
def test_a_tree_is_cut_from_its_tail_to_fit(snapshot: Snapshot, bytes_max: int) -> None:
    """Goal: never longer than allowed, the cut is told, and what is left is a head of the order."""
    try:
        wire = encode_snapshot(snapshot, bytes_max=bytes_max)
    except ValueError:
        assert len(encode_snapshot(replace(snapshot, keys=None, cut=False), bytes_max=LIMIT)) > bytes_max - 20
        return
    assert len(wire) <= bytes_max
    received = decode_snapshot(wire, bytes_max=bytes_max)
    if snapshot.keys is None:
        assert received == snapshot
    else:
        assert received.keys == snapshot.keys[: len(received.keys or ())]
        assert received.cut == (len(received.keys or ()) < snapshot.pages)
        assert received == replace(snapshot, keys=received.keys, cut=received.cut)


def test_the_cut_wastes_less_than_two_keys() -> None:
    keys = tuple(range(20_000))
    wire = encode_snapshot(replace(PLAIN, keys=keys, pages=20_000), bytes_max=65_536)
    received = decode_snapshot(wire, bytes_max=65_536)
    assert received.cut
    assert 65_536 - 16 < len(wire) <= 65_536


def test_a_snapshot_of_twenty_thousand_pages_fits_the_default_limit() -> None:
    keys = tuple(range(20_000))
    wire = encode_snapshot(replace(PLAIN, keys=keys, pages=20_000), bytes_max=LIMIT)
    assert decode_snapshot(wire, bytes_max=LIMIT).keys == keys


def test_addresses_that_peers_would_refuse_are_left_out() -> None:
    addrs = ("", "/ip4/1.2.3.4/tcp/1\n", "x" * 513, *(f"/ip4/10.0.0.{number}/tcp/1" for number in range(12)))
    received = decode_snapshot(encode_snapshot(replace(PLAIN, addrs=addrs), bytes_max=LIMIT), bytes_max=LIMIT)
    assert received.addrs == addrs[3:11]


def test_measured_values_are_clamped_into_their_ranges() -> None:
    """Goal: an estimate that is off never makes a node's own message undecodable."""
    off = replace(
        PLAIN,
        next_within_s=0.0,
        paused_for_s=math.inf,
        load=Load(prefill_tokens_per_s=1e-9, decode_tokens_per_s=math.nan),
    )
    received = decode_snapshot(encode_snapshot(off, bytes_max=LIMIT), bytes_max=LIMIT)
    assert (received.next_within_s, received.paused_for_s) == (0.001, 3600.0)
    assert (received.load.prefill_tokens_per_s, received.load.decode_tokens_per_s) == (0.001, 0.0)


def test_counters_out_of_range_are_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        encode_snapshot(replace(PLAIN, seq=-1), bytes_max=LIMIT)
    with pytest.raises(AssertionError):
        encode_snapshot(replace(PLAIN, pages=4), bytes_max=LIMIT)


def test_unknown_fields_are_ignored() -> None:
    """Goal: later versions may add fields."""
    assert decode_snapshot(with_field("colour", {"red": [1, 2, None]}), bytes_max=LIMIT) == PLAIN
    assert decode_snapshot(with_load("gpus", 8), bytes_max=LIMIT) == PLAIN


def test_whole_numbers_count_as_reals() -> None:
    """Goal: encoders that write 1.0 as 1 are understood."""
    assert decode_snapshot(with_field("next_within_s", 1), bytes_max=LIMIT) == PLAIN


def test_null_keys_are_a_heartbeat() -> None:
    received = decode_snapshot(with_field("keys", None), bytes_max=LIMIT)
    assert received == replace(PLAIN, keys=None)


def test_another_format_is_told_apart_from_garbage() -> None:
    with pytest.raises(WireVersionError, match="format 2"):
        decode_snapshot(with_field("v", 2), bytes_max=LIMIT)
    with pytest.raises(WireVersionError):
        decode_snapshot(cbor2.dumps({"v": 3, "everything": "else"}), bytes_max=LIMIT)


def test_a_snapshot_longer_than_the_limit_is_refused() -> None:
    wire = encode_snapshot(PLAIN, bytes_max=LIMIT)
    assert decode_snapshot(wire, bytes_max=len(wire)) == PLAIN
    with pytest.raises(WireError, match="more than"):
        decode_snapshot(wire, bytes_max=len(wire) - 1)


PACKED = bytes(range(24))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("v", None),
        ("v", "1"),
        ("addrs", "/ip4/1.2.3.4"),
        ("addrs", ["a"] * 9),
        ("addrs", [1]),
        ("addrs", ["x" * 513]),
        ("addrs", ["tab\t"]),
        ("incarnation", -1),
        ("incarnation", 2**53),
        ("seq", True),
        ("tree_version", 1.0),
        ("next_within_s", 0),
        ("next_within_s", 3601.0),
        ("next_within_s", math.nan),
        ("load", []),
        ("paused_for_s", -0.5),
        ("paused_for_s", math.inf),
        ("state", "asleep"),
        ("state", 1),
        ("reuse_tokens", 0),
        ("pages", 2),
        ("pages", 4),
        ("cut", True),
        ("cut", None),
        ("keys", [1, 2, 3]),
        ("keys", PACKED[:-1]),
        ("keys", PACKED[:8] * 3),
    ],
)
def test_a_field_out_of_its_range_is_named(name: str, value: object) -> None:
    with pytest.raises(WireError, match=r"^(keys|" + name + "):"):
        decode_snapshot(with_field(name, value), bytes_max=LIMIT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("running", -1),
        ("queued", None),
        ("queued_prefill_tokens", 0.5),
        ("prefill_tokens_per_s", 1e-4),
        ("prefill_tokens_per_s", 2e9),
        ("decode_tokens_per_s", "fast"),
        ("slots", 0),
    ],
)
def test_a_load_out_of_range_is_named(name: str, value: Any) -> None:
    """Goal: rates and slots are divided by; none of them may break that."""
    with pytest.raises(WireError, match=name):
        decode_snapshot(with_load(name, value), bytes_max=LIMIT)


@pytest.mark.parametrize("name", sorted({*cbor2.loads(encode_snapshot(PLAIN, bytes_max=LIMIT))} - {"keys"}))
def test_every_field_but_the_tree_is_required(name: str) -> None:
    fields = cbor2.loads(encode_snapshot(PLAIN, bytes_max=LIMIT))
    del fields[name]
    with pytest.raises(WireError, match=name):
        decode_snapshot(cbor2.dumps(fields), bytes_max=LIMIT)
