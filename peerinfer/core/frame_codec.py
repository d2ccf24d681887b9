"""The bytes of the frames in core/frames.py.

A frame is a CBOR map: `t` names its kind, `id` the exchange, and the other fields have the names they
have in core/frames.py; token ids are packed as uint32 little-endian. The length before each frame on a
stream is the overlay's part. Fields and limits: docs/protocol.md, one vector each: tests/vectors/frames.json.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import cbor2

from peerinfer.core.errors import WireError
from peerinfer.core.fingerprint import FINGERPRINT_BYTES
from peerinfer.core.frames import (
    ASKED_PAGES_MAX,
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
from peerinfer.core.page_keys import KEY_BYTES
from peerinfer.core.types import Endpoint, Given, Holding, Load, Usage
from peerinfer.core.wire import (
    ID_CHARS_MAX,
    Fields,
    clamped,
    is_label,
    load_fields,
    packed_keys,
    read_map,
    whole,
)

FRAME_OVERHEAD_BYTES_MAX = 64 * 1024
"""What a request frame may have beyond its body."""
FRAME_BYTES_MAX = 16 * 1024 * 1024 + FRAME_OVERHEAD_BYTES_MAX
"""The longest frame of the protocol. A node may read less: its own longest request body and the overhead."""
SECONDS_MAX = 7 * 24 * 3600.0
MESSAGE_CHARS_MAX = 1024
CODE_CHARS_MAX = 256
_TOKEN_BYTES = 4
ASKED_KEYS_BYTES_MAX = ASKED_PAGES_MAX * KEY_BYTES


def encode_frame(frame: Frame) -> bytes:
    """The bytes of a frame, without a length before them.

    Messages that are too long are cut, measured durations and rates are clamped into their ranges, and
    lone surrogates become question marks: UTF-8 has none. Raises ValueError for a frame that is too long.
    """
    kind, write = _WRITERS[type(frame)]
    fields = {"t": kind, "id": frame.id, **write(frame)}
    try:
        payload = cbor2.dumps(fields)
    except UnicodeEncodeError:
        payload = cbor2.dumps({name: _scrubbed(value) for name, value in fields.items()})
    if len(payload) > FRAME_BYTES_MAX:
        raise ValueError(f"a {kind} frame of {len(payload)} bytes; {FRAME_BYTES_MAX} is the longest")
    return payload


def decode_frame(payload: bytes) -> Frame:
    """A peer's frame. Raises WireError on anything that is none."""
    fields = read_map(payload, bytes_max=FRAME_BYTES_MAX)
    read = _READERS.get(fields.label("t"))
    if read is None:
        raise WireError("t: unknown kind of frame")
    return read(fields.label("id"), fields)


# Writers give a frame's fields but `t` and `id`.


def _write_data(frame: Data) -> dict[str, object]:
    """On the path of every token: no more than is needed."""
    fields: dict[str, object] = {"sse_json": frame.sse_json}
    if frame.text:
        fields["text"] = frame.text
    if frame.token_ids is not None:
        fields["token_ids"] = _packed(frame.token_ids)
    if frame.whole:
        fields["whole"] = True
    return fields


def _write_nothing(_frame: Heartbeat | Cancel) -> dict[str, object]:
    return {}


def _write_request(frame: Request) -> dict[str, object]:
    assert is_label(frame.id, chars_max=ID_CHARS_MAX)
    assert len(frame.fingerprint) == FINGERPRINT_BYTES
    fields: dict[str, object] = {
        "endpoint": frame.endpoint,
        "body": frame.body,
        "fingerprint": frame.fingerprint,
        "prompt_pages": whole(frame.prompt_pages),
        "expected_cached_tokens": whole(frame.expected_cached_tokens),
        "time_left_s": clamped(frame.time_left_s, most=SECONDS_MAX),
    }
    if frame.wait_at_most_s is not None:
        fields["wait_at_most_s"] = clamped(frame.wait_at_most_s, most=SECONDS_MAX)
    fields |= _given_fields("after", frame.after)
    if frame.answered_token_ids:  # a kind of its own: who does not know it must not answer from the start
        fields |= {"t": "continue", "answered_token_ids": _packed(frame.answered_token_ids)}
    return fields


def _write_stamp(frame: Accept | Wait | EndFrame) -> dict[str, object]:
    """When the sender's load was this: what orders it against its snapshots."""
    return {
        "incarnation": whole(frame.incarnation),
        "seq": whole(frame.seq),
        "load": load_fields(frame.load),
        **_given_fields("yours", frame.yours),
    }


def _given_fields(name: str, given: Given | None) -> dict[str, object]:
    if given is None:
        return {}
    return {name: {"requests": whole(given.requests), "tokens": whole(given.tokens)}}


def _write_refuse(frame: Refuse) -> dict[str, object]:
    fields: dict[str, object] = {
        "code": frame.code,
        "message": frame.message[:MESSAGE_CHARS_MAX],
        "status": whole(frame.status, least=400),
        "wait_s": clamped(frame.wait_s, most=SECONDS_MAX),
        "incarnation": whole(frame.incarnation),
        "seq": whole(frame.seq),
        **_given_fields("yours", frame.yours),
    }
    if frame.param is not None:
        fields["param"] = frame.param[:CODE_CHARS_MAX]
    if frame.error_code is not None:
        fields["error_code"] = frame.error_code[:CODE_CHARS_MAX]
    if frame.load is not None:
        fields["load"] = load_fields(frame.load)
    return fields


def _write_ask(frame: Ask) -> dict[str, object]:
    assert is_label(frame.id, chars_max=ID_CHARS_MAX)
    fields: dict[str, object] = {
        "prompt_tokens": whole(frame.prompt_tokens),
        "expected_cached_tokens": whole(frame.expected_cached_tokens),
    }
    if frame.keys:
        fields["keys"] = packed_keys(frame.keys[:ASKED_PAGES_MAX])
    return fields


def _write_wait(frame: Wait) -> dict[str, object]:
    fields = {
        "wait_s": clamped(frame.wait_s, most=SECONDS_MAX),
        **_write_stamp(frame),
        "known_incarnation": whole(frame.known_incarnation),
    }
    if frame.holding is not None:
        fields["holding"] = {name: whole(pages) for name, pages in frame.holding._asdict().items()}
    return fields


def _write_end(frame: EndFrame) -> dict[str, object]:
    return {
        "usage": {
            "prompt_tokens": whole(frame.usage.prompt_tokens),
            "completion_tokens": whole(frame.usage.completion_tokens),
        },
        "cached_tokens": whole(frame.cached_tokens),
        **_write_stamp(frame),
        "tree_version": whole(frame.tree_version),
    }


def _write_error(frame: ErrorFrame) -> dict[str, object]:
    return {"code": frame.code, "message": frame.message[:MESSAGE_CHARS_MAX]}


def _scrubbed(value: object) -> object:
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


# Readers make a frame of its id and its fields.


def _read_data(id: str, fields: Fields) -> Data:
    return Data(
        id=id,
        sse_json=fields.blob("sse_json", bytes_max=FRAME_BYTES_MAX),
        text=fields.text("text", chars_max=FRAME_BYTES_MAX, default=""),
        token_ids=_tokens(fields, "token_ids") if fields.has("token_ids") else None,
        whole=fields.has("whole") and fields.flag("whole"),
    )


def _read_heartbeat(id: str, _fields: Fields) -> Heartbeat:
    return Heartbeat(id=id)


def _read_cancel(id: str, _fields: Fields) -> Cancel:
    return Cancel(id=id)


def _read_request(id: str, fields: Fields) -> Request:
    return Request(
        id=id,
        endpoint=_one_of(_ENDPOINTS, fields, "endpoint"),
        body=fields.blob("body", bytes_max=FRAME_BYTES_MAX),
        fingerprint=fields.blob("fingerprint", bytes_min=FINGERPRINT_BYTES, bytes_max=FINGERPRINT_BYTES),
        prompt_pages=fields.uint("prompt_pages"),
        expected_cached_tokens=fields.uint("expected_cached_tokens"),
        time_left_s=fields.real("time_left_s", most=SECONDS_MAX),
        wait_at_most_s=(
            fields.real("wait_at_most_s", most=SECONDS_MAX) if fields.has("wait_at_most_s") else None
        ),
        after=_read_given(fields, "after"),
    )


def _read_continue(id: str, fields: Fields) -> Request:
    return replace(_read_request(id, fields), answered_token_ids=_tokens(fields, "answered_token_ids"))


def _read_accept(id: str, fields: Fields) -> Accept:
    return Accept(
        id=id,
        incarnation=fields.uint("incarnation"),
        seq=fields.uint("seq"),
        load=fields.load("load"),
        yours=_read_given(fields, "yours"),
    )


def _read_refuse(id: str, fields: Fields) -> Refuse:
    load: Load | None = fields.load("load") if fields.has("load") else None
    return Refuse(
        id=id,
        code=_one_of(_REFUSE_CODES, fields, "code"),
        message=fields.text("message", chars_max=MESSAGE_CHARS_MAX),
        status=fields.uint("status", least=400, most=599),
        param=fields.text("param", chars_max=CODE_CHARS_MAX) if fields.has("param") else None,
        error_code=fields.text("error_code", chars_max=CODE_CHARS_MAX) if fields.has("error_code") else None,
        wait_s=fields.real("wait_s", most=SECONDS_MAX),
        incarnation=fields.uint("incarnation"),
        seq=fields.uint("seq"),
        load=load,
        yours=_read_given(fields, "yours"),
    )


def _read_ask(id: str, fields: Fields) -> Ask:
    return Ask(
        id=id,
        prompt_tokens=fields.uint("prompt_tokens"),
        expected_cached_tokens=fields.uint("expected_cached_tokens"),
        keys=fields.page_keys("keys", bytes_max=ASKED_KEYS_BYTES_MAX) if fields.has("keys") else (),
    )


def _read_wait(id: str, fields: Fields) -> Wait:
    return Wait(
        id=id,
        wait_s=fields.real("wait_s", most=SECONDS_MAX),
        incarnation=fields.uint("incarnation"),
        seq=fields.uint("seq"),
        load=fields.load("load"),
        yours=_read_given(fields, "yours"),
        known_incarnation=fields.uint("known_incarnation", default=0),
        holding=_read_holding(fields, "holding"),
    )


def _read_end(id: str, fields: Fields) -> EndFrame:
    usage = fields.map("usage")
    return EndFrame(
        id=id,
        usage=Usage(
            prompt_tokens=usage.uint("prompt_tokens"), completion_tokens=usage.uint("completion_tokens")
        ),
        cached_tokens=fields.uint("cached_tokens"),
        incarnation=fields.uint("incarnation"),
        tree_version=fields.uint("tree_version"),
        seq=fields.uint("seq"),
        load=fields.load("load"),
        yours=_read_given(fields, "yours"),
    )


def _read_error(id: str, fields: Fields) -> ErrorFrame:
    return ErrorFrame(
        id=id, code=fields.label("code"), message=fields.text("message", chars_max=MESSAGE_CHARS_MAX)
    )


def _read_given(fields: Fields, name: str) -> Given | None:
    if not fields.has(name):
        return None
    given = fields.map(name)
    return Given(given.uint("requests"), given.uint("tokens"))


def _read_holding(fields: Fields, name: str) -> Holding | None:
    if not fields.has(name):
        return None
    holding = fields.map(name)
    return Holding(holding.uint("cached_pages"), holding.uint("coming_pages"))


def _packed(token_ids: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def _tokens(fields: Fields, name: str) -> tuple[int, ...]:
    packed = fields.blob(name, bytes_max=FRAME_BYTES_MAX)
    if len(packed) % _TOKEN_BYTES:
        raise WireError(f"{name}: not 4 bytes each")
    return struct.unpack(f"<{len(packed) // _TOKEN_BYTES}I", packed)


def _one_of(words: dict[str, Any], fields: Fields, name: str) -> Any:
    word = words.get(fields.label(name))
    if word is None:
        raise WireError(f"{name}: none of {', '.join(words)}")
    return word


_ENDPOINTS: dict[str, Endpoint] = {word: word for word in get_args(Endpoint)}
_REFUSE_CODES: dict[str, RefuseCode] = {word: word for word in get_args(RefuseCode)}
_WRITERS: dict[type, tuple[str, Callable[[Any], dict[str, object]]]] = {
    Data: ("data", _write_data),
    Heartbeat: ("heartbeat", _write_nothing),
    Request: ("request", _write_request),
    Accept: ("accept", _write_stamp),
    Refuse: ("refuse", _write_refuse),
    Ask: ("ask", _write_ask),
    Wait: ("wait", _write_wait),
    Cancel: ("cancel", _write_nothing),
    EndFrame: ("end", _write_end),
    ErrorFrame: ("error", _write_error),
}
_READERS: dict[str, Callable[[str, Fields], Frame]] = {
    "data": _read_data,
    "heartbeat": _read_heartbeat,
    "request": _read_request,
    "continue": _read_continue,
    "accept": _read_accept,
    "refuse": _read_refuse,
    "ask": _read_ask,
    "wait": _read_wait,
    "cancel": _read_cancel,
    "end": _read_end,
    "error": _read_error,
}
