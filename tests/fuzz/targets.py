"""The parsers that read a stranger's bytes, each with what it may raise; anything else it raises is a bug.

A target is a function of bytes that returns normally or raises one of `refusals`. Where a parser's result can
be written again, the target does so and compares: what was accepted means the same to the next reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import base58
from google.protobuf.message import DecodeError
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, StopMessage

from peerinfer.api.access import KeyPolicy
from peerinfer.api.assemble import Assembler, has_usage, sse, usage_chunk
from peerinfer.api.body import parse_object
from peerinfer.api.security import HostPolicy, check_content_type
from peerinfer.api.validate import check_body, include_usage
from peerinfer.cli.addresses import AddressError, parse_host_port, parse_join, parse_listen
from peerinfer.core.errors import WireError
from peerinfer.core.fingerprint import decode_hello, encode_hello
from peerinfer.core.frame_codec import decode_frame, encode_frame
from peerinfer.core.invite import Invite, InviteError, _checksum, decode_invite, encode_invite
from peerinfer.core.snapshot import decode_snapshot, encode_snapshot
from peerinfer.core.swarm_key import SwarmKey, SwarmKeyError, format_swarm_key, parse_swarm_key
from peerinfer.core.types import PeerId, RequestError
from peerinfer.engine.json_members import with_members
from peerinfer.engine.kv_event_codec import EventDecodeError, decode_batch
from peerinfer.engine.openai_body import read_options, read_prompt
from peerinfer.engine.sglang_chat import read_chat
from peerinfer.engine.upstream_body import check_numbers
from peerinfer.engine.upstream_error import refusal, stream_error
from peerinfer.node.serve import _parse as parse_forwarded
from peerinfer.overlay.addresses import dialable, is_peer_id, parse_listen_address, parse_peer_address
from peerinfer.overlay.framing import Deframer, with_length
from tests.fuzz import connection_face, http_face

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
LIMIT = 256 * 1024
PAYLOAD_MAX = 400
MODELS = ["m"]
PEER = connection_face.PEER


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser."""

    name: str
    run: Callable[[bytes], None]
    refusals: tuple[type[Exception], ...]
    codec: Literal["json", "cbor", "msgpack"] | None = None
    seeds: tuple[bytes, ...] = ()
    """Besides those in the corpus."""
    cost: int = 1
    """How many cases of the others one of these takes as long as."""


def _snapshot(payload: bytes) -> None:
    found = decode_snapshot(payload, bytes_max=LIMIT)
    assert decode_snapshot(encode_snapshot(found, bytes_max=2 * LIMIT), bytes_max=2 * LIMIT) == found


def _frame(payload: bytes) -> None:
    found = decode_frame(payload)
    assert decode_frame(encode_frame(found)) == found


def _hello(payload: bytes) -> None:
    found = decode_hello(payload, bytes_max=LIMIT)
    assert decode_hello(encode_hello(found), bytes_max=LIMIT) == found
    with suppress(WireError):
        _snapshot(found.snapshot)


def _framing(payload: bytes) -> None:
    """However a stream is cut into reads, the same messages come out, and nothing above the limit is kept."""
    cut = 1 + payload[0] % 7 if payload else 1
    whole, pieces = Deframer(bytes_max=1000), Deframer(bytes_max=1000)
    found: list[bytes] = []
    refused = False
    try:
        for at in range(0, len(payload), cut):
            found += pieces.feed(payload[at : at + cut])
    except WireError:
        refused = True
    at_once: list[bytes] = []
    try:
        at_once.extend(whole.feed(payload))
    except WireError:
        assert refused
    assert found == at_once
    for message in found:
        assert list(Deframer(bytes_max=1000).feed(with_length(message))) == [message]


def _body(endpoint: Literal["chat", "completions"]) -> Callable[[bytes], None]:
    def run(payload: bytes) -> None:
        body = parse_object(payload)
        check_body(endpoint, body, models=MODELS)
        include_usage(body)
        _engines(endpoint, body)
        with_members(payload, {"model": "other"})

    return run


def _engines(endpoint: Literal["chat", "completions"], body: Mapping[str, object]) -> None:
    """What engines read of a body that the face let pass, or that a peer forwarded."""
    for read in (read_prompt, read_options):
        with suppress(RequestError):
            read(endpoint, body)
    with suppress(RequestError):
        check_numbers(endpoint, body, vocabulary=50_000)
    if endpoint == "chat":
        read_chat(body)


def _forwarded(payload: bytes) -> None:
    body = parse_forwarded(payload, model="m")
    for endpoint in ("chat", "completions"):
        _engines(endpoint, body)  # type: ignore[arg-type]
    with suppress(ValueError):
        with_members(payload, {"model": "m"})


def _answer(payload: bytes) -> None:
    """A stream's chunks, one a line, from a peer or a server: to one whole answer, and to events."""
    for endpoint in ("chat", "completions"):
        assembler = Assembler(endpoint, request_id="r", model="m")  # type: ignore[arg-type]
        chunks = payload.split(b"\n")
        for chunk in chunks:
            assembler.add(chunk)
            sse(chunk)
        has_usage(chunks[-1])
        usage_chunk(endpoint, chunks[-1], {}, request_id="r", model="m")  # type: ignore[arg-type]
        json.loads(assembler.whole({}).decode())


def _server_error(payload: bytes) -> None:
    for status in (400, 404, 429, 500):
        assert isinstance(refusal("chat", status, payload), Exception)
    with suppress(ValueError, RecursionError):
        event = json.loads(payload)
        if isinstance(event, dict):
            stream_error("chat", event)


_HOSTS = (HostPolicy("127.0.0.1", "127.0.0.1"), HostPolicy("0.0.0.0", "0.0.0.0", ["llm.example.org"]))
_KEYS = KeyPolicy("s3cret")


def _headers(payload: bytes) -> None:
    """Headers as the server hands them on: names in lower case."""
    lines = [line.partition(b":") for line in payload.split(b"\n")]
    headers = [(name.strip().lower(), value.strip()) for name, _, value in lines]
    for check in (*(host.check for host in _HOSTS), check_content_type):
        with suppress(RequestError):
            check(headers)
    _KEYS.check("/", headers)


def _address(payload: bytes) -> None:
    text = payload.decode("latin-1")
    for addr in dialable([text], loopback=True):
        assert dialable([addr], loopback=True) == (addr,)
    is_peer_id(text)
    for parse in (parse_join, parse_listen, parse_host_port):
        with suppress(AddressError):
            parse(text)
    with suppress(ValueError):
        peer, addr = parse_peer_address(text)
        assert parse_peer_address(f"{addr}/p2p/{peer}") == (peer, addr)
    with suppress(ValueError):
        assert parse_listen_address(parse_listen_address(text)) == parse_listen_address(text)


def _invite(payload: bytes) -> None:
    found = decode_invite(payload.decode("latin-1"))
    assert decode_invite(encode_invite(found)) == found


def _invite_payload(payload: bytes) -> None:
    """The same behind a checksum that fits, which random changes would never get past."""
    _invite(b"pinv1" + base58.b58encode(payload[:PAYLOAD_MAX] + _checksum(payload[:PAYLOAD_MAX])))


def _swarm_key(payload: bytes) -> None:
    key = parse_swarm_key(payload)
    assert parse_swarm_key(format_swarm_key(key)) == key


def _relay(payload: bytes) -> None:
    """What a relay, and whoever is reached through one, reads before it knows what is wanted."""
    for kind in (HopMessage, StopMessage):
        asked = kind.FromString(payload)
        assert kind.FromString(asked.SerializeToString()) == asked
        PeerId(ID(asked.peer.id).to_base58())


def _kv_events(payload: bytes) -> None:
    decode_batch(payload)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


_CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 5,
    "temperature": 0.5,
    "stop": ["x"],
    "continue_final_message": False,
}
_TEXT = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "logprobs": 2, "n": 1, "seed": -1}
_CHUNKS = (
    {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}]},
    {"choices": [{"index": 0, "text": "a", "logprobs": {"content": [1]}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 1}},
)
_HEADERS = (
    b"host: 127.0.0.1:8000\norigin: http://127.0.0.1:8000\nauthorization: Bearer s3cret",
    b"host: [::1]\ncontent-type: application/json; charset=utf-8\nauthorization: Basic OnMzY3JldA==",
)
_ADDRESSES = (
    f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER}",
    f"/ip6/2001:db8::7/tcp/1/p2p/{PEER}",
    "/dns4/example.org/tcp/65535",
    "/ip6zone/eth0/ip6/fe80::1/tcp/1",
    "/ip4/127.0.0.1/udp/1/quic-v1/webtransport/certhash/uEiAkH5a4",
    f"/ip4/192.0.2.7/tcp/1/p2p/{PEER}/p2p-circuit/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
    "[::1]:8000",
    "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
)
_INVITES = (Invite((_ADDRESSES[0],), SwarmKey(bytes(range(32)))), Invite(_ADDRESSES[:2], None))
_KEY = SwarmKey(bytes(range(32)))
_KEY_FILES = (
    format_swarm_key(_KEY),
    b"/key/swarm/psk/1.0.0/\n/base64/\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
    b"/key/swarm/psk/1.0.0/\n/bin/\n" + _KEY.secret,
)


@cache
def _vectors(name: str) -> tuple[bytes, ...]:
    cases = json.loads((HERE.parent / "vectors" / name).read_text(encoding="utf-8"))
    return tuple(bytes.fromhex(case["wire"]) for case in cases)


@cache
def _recorded_events() -> tuple[bytes, ...]:
    path = HERE.parent / "engine" / "recordings" / "sglang_kv_events.json"
    recorded: dict[str, Any] = json.loads(path.read_text())
    frames = [frame for recording in recorded.values() for frame in recording["live"]]
    return tuple(dict.fromkeys(bytes.fromhex(frame[2])[:4096] for frame in frames))[:40]


def all_targets() -> dict[str, Target]:
    """Every target by its name."""
    chat, text = _json(_CHAT), _json(_TEXT)
    frames = _vectors("frames.json")
    targets = (
        Target(
            name="snapshot",
            run=_snapshot,
            refusals=(WireError,),
            codec="cbor",
            seeds=_vectors("snapshots.json"),
        ),
        Target(name="frame", run=_frame, refusals=(WireError,), codec="cbor", seeds=frames),
        Target(name="hello", run=_hello, refusals=(WireError,), codec="cbor", seeds=_vectors("hello.json")),
        Target(
            name="framing",
            run=_framing,
            refusals=(),
            seeds=(b"".join(map(with_length, frames[:3])), with_length(b"x" * 300), b""),
        ),
        Target(name="chat", run=_body("chat"), refusals=(RequestError,), codec="json", seeds=(chat,)),
        Target(
            name="completion", run=_body("completions"), refusals=(RequestError,), codec="json", seeds=(text,)
        ),
        Target(name="forwarded", run=_forwarded, refusals=(RequestError,), codec="json", seeds=(chat, text)),
        Target(
            name="answer",
            run=_answer,
            refusals=(RequestError,),
            codec="json",
            seeds=(*map(_json, _CHUNKS), b"\n".join(map(_json, _CHUNKS))),
        ),
        Target(
            name="server_error",
            run=_server_error,
            refusals=(),
            codec="json",
            seeds=(
                _json({"error": {"message": "no", "code": 400}}),
                _json({"object": "error", "message": "no"}),
            ),
        ),
        Target(name="http", run=http_face.run, refusals=(), seeds=http_face.SEEDS, cost=20),
        Target(name="connection", run=connection_face.run, refusals=(), seeds=connection_face.SEEDS, cost=20),
        Target(name="headers", run=_headers, refusals=(RequestError,), seeds=_HEADERS),
        Target(
            name="address",
            run=_address,
            refusals=(),
            seeds=tuple(each.encode() for each in _ADDRESSES),
        ),
        Target(
            name="invite",
            run=_invite,
            refusals=(InviteError,),
            seeds=tuple(encode_invite(each).encode() for each in _INVITES),
        ),
        Target(
            name="invite_payload",
            run=_invite_payload,
            refusals=(InviteError,),
            codec="cbor",
            seeds=tuple(b58_payload(encode_invite(each)) for each in _INVITES),
        ),
        Target(
            name="relay",
            run=_relay,
            refusals=(DecodeError,),
            seeds=tuple(
                kind(type=kind.CONNECT, peer={"id": ID.from_base58(PEER).to_bytes()}).SerializeToString()
                for kind in (HopMessage, StopMessage)
            ),
        ),
        Target(name="swarm_key", run=_swarm_key, refusals=(SwarmKeyError,), seeds=_KEY_FILES),
        Target(
            name="kv_events",
            run=_kv_events,
            refusals=(EventDecodeError,),
            codec="msgpack",
            seeds=_recorded_events(),
        ),
    )
    return {target.name: target for target in targets}


def b58_payload(invite: str) -> bytes:
    """An invite's payload without its checksum."""
    return bytes(base58.b58decode(invite.removeprefix("pinv1"))[:-4])


def corpus_of(target: Target) -> list[bytes]:
    """The target's seeds and what is kept of earlier runs: a line of hex each, and behind `#` why."""
    path = CORPUS / f"{target.name}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [*target.seeds, *(bytes.fromhex(line.partition("#")[0]) for line in lines)]
