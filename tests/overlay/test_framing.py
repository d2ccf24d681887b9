"""Length-prefixed messages out of a stream of bytes that may be cut anywhere."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.core.errors import WireError
from peerinfer.overlay.framing import Deframer, with_length


@given(st.lists(st.binary(max_size=400), max_size=8), st.data())
def test_messages_survive_any_cut(payloads: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(with_length(payload) for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=10)))
    deframer = Deframer(bytes_max=400)
    received: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        received += deframer.feed(wire[start:end])
    assert received == payloads


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(garbage: bytes) -> None:
    deframer = Deframer(bytes_max=64)
    with suppress(WireError):
        assert all(len(payload) <= 64 for payload in deframer.feed(garbage))


def test_a_message_over_the_limit_is_refused_before_it_is_there() -> None:
    with pytest.raises(WireError, match="1001 bytes"):
        list(Deframer(bytes_max=1000).feed(with_length(b"x" * 1001)[:2]))


def test_a_length_without_end_is_refused() -> None:
    with pytest.raises(WireError, match="uvarint"):
        list(Deframer(bytes_max=1000).feed(b"\xff" * 6))
