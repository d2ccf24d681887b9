"""Server-sent events in pieces of any size."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.engine.event_stream import EventStream

WIRE = (
    b': a comment\n\ndata: {"a": 1}\n\ndata:{"b":2}\r\n\r\nevent: ids\ndata: {"c":\ndata: 3}\nid: 7\n\n'
    b"\n\ndata: [DONE]\n\n"
)
EVENTS = [b'{"a": 1}', b'{"b":2}', b'{"c":\n3}', b"[DONE]"]


@given(st.lists(st.integers(0, len(WIRE)), max_size=30))
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    stream = EventStream(bytes_max=1000)
    found = []
    places = [0, *sorted(cuts), len(WIRE)]
    for begin, end in itertools.pairwise(places):
        found += stream.feed(WIRE[begin:end])
    assert found == EVENTS


def test_an_event_is_there_as_soon_as_its_empty_line_is() -> None:
    stream = EventStream(bytes_max=1000)
    assert stream.feed(b"data: x\n") == []
    assert stream.feed(b"\ndata: y") == [b"x"]


def test_an_event_without_end_is_refused() -> None:
    for piece in (b"data: " + b"x" * 11, b"data: " + b"x" * 6 + b"\ndata: " + b"y" * 6 + b"\n"):
        with pytest.raises(ValueError, match="more than 10 bytes"):
            EventStream(bytes_max=10).feed(piece)
