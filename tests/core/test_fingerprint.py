"""Fingerprints, topics, and the hello that names what differs."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.core.errors import WireError, WireVersionError
from peerinfer.core.fingerprint import (
    Hello,
    decode_hello,
    differing_fields,
    encode_hello,
    fingerprint,
    swarm_fields,
    topic,
)
from peerinfer.core.swarm_key import SwarmKey

LIMIT = 64 * 1024
NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=64)
VALUES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=100)
FIELDS = st.dictionaries(NAMES, VALUES, max_size=32)
ONE = {"tokenizer": "abc", "page_size": "16"}


@given(FIELDS, st.randoms())
def test_the_order_of_the_fields_does_not_matter(fields: dict[str, str], random: object) -> None:
    shuffled = list(fields.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fingerprint(dict(shuffled)) == fingerprint(fields)
    assert len(fingerprint(fields)) == 16


@given(FIELDS, FIELDS)
def test_fingerprints_are_equal_for_equal_fields_alone(ours: dict[str, str], theirs: dict[str, str]) -> None:
    assert (fingerprint(ours) == fingerprint(theirs)) == (ours == theirs)
    assert (differing_fields(ours, theirs) == ()) == (ours == theirs)


@given(FIELDS)
def test_the_hash_is_over_the_shortest_cbor_with_sorted_names(fields: dict[str, str]) -> None:
    """Goal: another implementation gets the same fingerprint. Method: RFC 8949 §4.2.1, written out."""

    def text(value: str) -> bytes:
        return head(3, len(value.encode())) + value.encode()

    def head(major: int, argument: int) -> bytes:
        if argument < 24:
            return bytes([major << 5 | argument])
        if argument < 256:
            return bytes([major << 5 | 24, argument])
        return bytes([major << 5 | 25]) + argument.to_bytes(2, "big")

    items = sorted((text(name), text(value)) for name, value in fields.items())
    assert cbor2.dumps(fields, canonical=True) == head(5, len(fields)) + b"".join(a + b for a, b in items)


def test_the_topic_names_the_fingerprint() -> None:
    assert topic(bytes(range(16))) == "peerinfer/1/000102030405060708090a0b0c0d0e0f"


def test_differing_fields_are_named_in_order() -> None:
    assert differing_fields(ONE, ONE) == ()
    theirs = {"tokenizer": "other", "page_size": "16", "salt": "x"}
    assert differing_fields(ONE, theirs) == differing_fields(theirs, ONE) == ("salt", "tokenizer")


def test_nodes_of_another_swarm_key_have_another_fingerprint() -> None:
    """Goal: its key salts all page keys, so they mean nothing without it."""
    key, other = SwarmKey(b"k" * 32), SwarmKey(b"o" * 32)
    assert swarm_fields(ONE, None) == ONE
    assert swarm_fields(ONE, key) == swarm_fields(ONE, SwarmKey(b"k" * 32))
    assert differing_fields(swarm_fields(ONE, key), swarm_fields(ONE, other)) == ("swarm_key",)
    assert key.secret.hex() not in str(swarm_fields(ONE, key))


@given(FIELDS, st.binary(max_size=100))
def test_a_hello_is_decoded_as_it_was_encoded(fields: dict[str, str], snapshot: bytes) -> None:
    hello = Hello(fields=fields, snapshot=snapshot)
    assert decode_hello(encode_hello(hello), bytes_max=LIMIT) == hello


def test_a_hello_of_another_format_is_told_apart_from_garbage() -> None:
    with pytest.raises(WireVersionError):
        decode_hello(cbor2.dumps({"v": 2}), bytes_max=LIMIT)


def test_a_hello_longer_than_the_limit_is_refused() -> None:
    with pytest.raises(WireError, match="more than"):
        decode_hello(encode_hello(Hello(fields=ONE, snapshot=bytes(100))), bytes_max=99)


def test_unknown_fields_of_a_hello_are_ignored() -> None:
    wire = cbor2.dumps({**cbor2.loads(encode_hello(Hello(ONE, b"s"))), "more": 1})
    assert decode_hello(wire, bytes_max=LIMIT) == Hello(ONE, b"s")


BAD_FIELDS: list[object] = [
    {f"name{number}": "" for number in range(33)},
    {"": "x"},
    {"n" * 65: "x"},
    {"name\n": "x"},
    {b"name": "x"},
    {"name": 1},
    {"name": "x" * 513},
    {"name": "\x1b[2J"},
]


@pytest.mark.parametrize("fields", [*BAD_FIELDS, None, []])
def test_fields_out_of_their_ranges_are_refused(fields: object) -> None:
    with pytest.raises(WireError, match="fields"):
        decode_hello(cbor2.dumps({"v": 1, "fields": fields, "snapshot": b""}), bytes_max=LIMIT)


@pytest.mark.parametrize("fields", BAD_FIELDS)
def test_fields_that_peers_would_refuse_are_not_sent(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="fields"):
        encode_hello(Hello(fields=fields, snapshot=b""))


def test_a_hello_needs_its_snapshot() -> None:
    with pytest.raises(WireError, match="snapshot"):
        decode_hello(cbor2.dumps({"v": 1, "fields": ONE, "snapshot": "text"}), bytes_max=LIMIT)
