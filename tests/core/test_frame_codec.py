"""The frame codec: round trips of every kind, and what a field may be."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.core.errors import WireError
from peerinfer.core.frame_codec import ASKED_KEYS_BYTES_MAX, FRAME_BYTES_MAX, decode_frame, encode_frame
from peerinfer.core.frames import (
    Accept,
    Ask,
    Cancel,
    Data,
    EndFrame,
    ErrorFrame,
    Frame,
    Heartbeat,
    Refuse,
    RefuseCode,
    Request,
    Wait,
)
from peerinfer.core.types import Holding, Load, Usage

UINT = st.integers(0, 2**53 - 1)
SECONDS = st.floats(0, 7 * 24 * 3600)
RATE = st.just(0.0) | st.floats(1e-3, 1e9)
ID = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=64)
MESSAGE = st.text(max_size=200)
LOAD = st.builds(
    Load,
    running=UINT,
    queued=UINT,
    queued_prefill_tokens=UINT,
    prefill_tokens_per_s=RATE,
    decode_tokens_per_s=RATE,
    slots=st.integers(1, 2**53 - 1),
)
FRAMES = st.one_of(
    st.builds(
        Request,
        id=ID,
        endpoint=st.sampled_from(["chat", "completions"]),
        body=st.binary(max_size=200),
        fingerprint=st.binary(min_size=16, max_size=16),
        prompt_pages=UINT,
        expected_cached_tokens=UINT,
        time_left_s=SECONDS,
        wait_at_most_s=st.none() | SECONDS,
    ),
    st.builds(Accept, id=ID, incarnation=UINT, seq=UINT, load=LOAD),
    st.builds(
        Refuse,
        id=ID,
        code=st.sampled_from(get_args(RefuseCode)),
        message=MESSAGE,
        status=st.integers(400, 599),
        param=st.none() | MESSAGE,
        error_code=st.none() | MESSAGE,
        wait_s=SECONDS,
        incarnation=UINT,
        seq=UINT,
        load=st.none() | LOAD,
    ),
    st.builds(
        Data,
        id=ID,
        sse_json=st.binary(max_size=200),
        text=MESSAGE,
        token_ids=st.none() | st.lists(st.integers(0, 2**32 - 1), max_size=400).map(tuple),
        whole=st.booleans(),
    ),
    st.builds(Heartbeat, id=ID),
    st.builds(
        Ask,
        id=ID,
        prompt_tokens=UINT,
        expected_cached_tokens=UINT,
        keys=st.lists(st.integers(0, 2**64 - 1), max_size=100).map(tuple),
    ),
    st.builds(
        Wait,
        id=ID,
        wait_s=SECONDS,
        incarnation=UINT,
        seq=UINT,
        load=LOAD,
        known_incarnation=UINT,
        holding=st.none() | st.builds(Holding, UINT, UINT),
    ),
    st.builds(Cancel, id=ID),
    st.builds(
        EndFrame,
        id=ID,
        usage=st.builds(Usage, prompt_tokens=UINT, completion_tokens=UINT),
        cached_tokens=UINT,
        incarnation=UINT,
        tree_version=UINT,
        seq=UINT,
        load=LOAD,
    ),
    st.builds(ErrorFrame, id=ID, code=ID, message=MESSAGE),
)

REQUEST = Request(
    id="r1",
    endpoint="chat",
    body=b"{}",
    fingerprint=bytes(16),
    prompt_pages=2,
    expected_cached_tokens=32,
    time_left_s=9.5,
)
REFUSE = Refuse(id="r1", code="overloaded", message="busy", load=Load())
DATA = Data(id="r1", sse_json=b"{}", text="x", token_ids=(1, 2))
END = EndFrame(
    id="r1",
    usage=Usage(prompt_tokens=5, completion_tokens=6),
    cached_tokens=0,
    incarnation=1,
    tree_version=2,
    seq=3,
    load=Load(),
)
WAIT = Wait(id="r1", wait_s=1.0, incarnation=1, seq=2, load=Load())


def with_field(frame: Frame, name: str, value: object) -> bytes:
    return cbor2.dumps({**cbor2.loads(encode_frame(frame)), name: value})


@given(FRAMES)
def test_what_was_encoded_is_decoded_alike(frame: Frame) -> None:
    assert decode_frame(encode_frame(frame)) == frame


@given(FRAMES)
def test_unknown_fields_are_ignored(frame: Frame) -> None:
    """Goal: later versions may add fields."""
    assert decode_frame(with_field(frame, "colour", [1, {"a": None}])) == frame


@given(FRAMES, st.data())
def test_a_frame_without_a_field_is_refused_or_has_its_default(frame: Frame, data: st.DataObject) -> None:
    """Goal: no field is read that is not there. Method: take any out; only those with a default may go."""
    fields = cbor2.loads(encode_frame(frame))
    name = data.draw(st.sampled_from(sorted(fields)))
    del fields[name]
    optional = {"text": "", "token_ids": None, "whole": False}
    optional |= {"param": None, "error_code": None, "known_incarnation": 0, "wait_at_most_s": None}
    optional |= {"keys": (), "holding": None}
    if isinstance(frame, Refuse):
        optional["load"] = None
    if name in optional:
        assert decode_frame(cbor2.dumps(fields)) == replace(frame, **{name: optional[name]})  # type: ignore[arg-type]
    else:
        with pytest.raises(WireError, match=f"^{name}:"):
            decode_frame(cbor2.dumps(fields))


@pytest.mark.parametrize(
    ("frame", "name", "value"),
    [
        (DATA, "t", "gossip"),
        (DATA, "t", 7),
        (DATA, "id", ""),
        (DATA, "id", "x" * 65),
        (DATA, "id", "line\nbreak"),
        (DATA, "id", "é"),
        (DATA, "sse_json", "text"),
        (DATA, "text", b"bytes"),
        (DATA, "token_ids", [1, 2]),
        (DATA, "token_ids", b"12345"),
        (DATA, "whole", 1),
        (REQUEST, "endpoint", "embeddings"),
        (REQUEST, "endpoint", ["chat"]),
        (REQUEST, "body", None),
        (REQUEST, "fingerprint", bytes(15)),
        (REQUEST, "fingerprint", bytes(17)),
        (REQUEST, "prompt_pages", -1),
        (REQUEST, "expected_cached_tokens", 2**53),
        (REQUEST, "time_left_s", math.nan),
        (REQUEST, "time_left_s", 1e9),
        (REFUSE, "code", "tired"),
        (REFUSE, "message", "x" * 1025),
        (REFUSE, "status", 399),
        (REFUSE, "status", 600),
        (REFUSE, "param", "x" * 257),
        (REFUSE, "error_code", 3),
        (REFUSE, "wait_s", -1.0),
        (REFUSE, "load", []),
        (END, "usage", 11),
        (END, "tree_version", "7"),
        (WAIT, "known_incarnation", -1),
        (ErrorFrame(id="r1", code="x", message=""), "code", ""),
    ],
)
def test_a_field_out_of_its_range_is_named(frame: Frame, name: str, value: object) -> None:
    with pytest.raises(WireError, match=f"^{name}:"):
        decode_frame(with_field(frame, name, value))


def test_null_is_the_same_as_absent() -> None:
    assert decode_frame(with_field(DATA, "token_ids", None)) == replace(DATA, token_ids=None)
    assert decode_frame(with_field(WAIT, "known_incarnation", None)) == WAIT


def test_what_was_measured_is_clamped_and_what_is_told_is_cut() -> None:
    """Goal: a node's own estimate or a client's long text never makes a frame that peers refuse."""
    long = replace(REFUSE, wait_s=math.inf, message="m" * 5000, param="p" * 5000, error_code="c" * 5000)
    received = decode_frame(encode_frame(long))
    assert received == replace(
        REFUSE, wait_s=7 * 24 * 3600.0, message="m" * 1024, param="p" * 256, error_code="c" * 256
    )
    assert decode_frame(encode_frame(replace(REQUEST, time_left_s=-1.0))) == replace(REQUEST, time_left_s=0.0)


def test_lone_surrogates_become_question_marks() -> None:
    """Goal: a client's JSON may hold half a character, and it may come back in a message."""
    refuse = replace(REFUSE, message="model '\ud800' is unknown")
    assert decode_frame(encode_frame(refuse)) == replace(REFUSE, message="model '?' is unknown")
    data = Data(id="r1", sse_json=b"{}", text="a\udfff", token_ids=(1,))
    assert decode_frame(encode_frame(data)) == replace(data, text="a?")


def test_a_frame_that_is_too_long_is_neither_sent_nor_read() -> None:
    with pytest.raises(ValueError, match="longest"):
        encode_frame(Data(id="r1", sse_json=bytes(FRAME_BYTES_MAX)))
    with pytest.raises(WireError, match="more than"):
        decode_frame(bytes(FRAME_BYTES_MAX + 1))


def test_an_exchange_is_opened_with_an_id_that_logs_can_show() -> None:
    with pytest.raises(AssertionError):
        encode_frame(replace(REQUEST, id="a\nb"))
    with pytest.raises(AssertionError):
        encode_frame(Ask(id="", prompt_tokens=1, expected_cached_tokens=0))


def test_of_a_very_long_prompt_only_the_first_pages_are_asked_for() -> None:
    most = ASKED_KEYS_BYTES_MAX // 8
    long = Ask(id="r1", prompt_tokens=1, expected_cached_tokens=0, keys=tuple(range(most + 1)))
    read = decode_frame(encode_frame(long))
    assert isinstance(read, Ask)
    assert read.keys == long.keys[:most]
    with pytest.raises(WireError, match="keys"):
        decode_frame(with_field(long, "keys", bytes(ASKED_KEYS_BYTES_MAX + 8)))
    with pytest.raises(WireError, match="keys"):
        decode_frame(with_field(long, "keys", bytes(12)))
