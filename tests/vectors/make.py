"""Writes the fixed vectors beside this file: `python tests/vectors/make.py`, after a change of the wire.

Byte strings and page keys are in hexadecimal, page keys as their 8 bytes on the wire. A diff in these
files is a change of the protocol: raise the format or the protocol id with it (docs/protocol.md).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import cbor2

from peerinfer.core.fingerprint import Hello, encode_hello, fingerprint, topic
from peerinfer.core.frame_codec import encode_frame
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
    Request,
    Wait,
)
from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.snapshot import Snapshot, decode_snapshot, encode_snapshot
from peerinfer.core.types import Given, Holding, Load, NodeState, PageKey, Usage

FIELDS = {
    "tokenizer": "0d2a6b8e4c1f7a35",
    "chat_template": "5f0c7b1f2f7f6b7d",
    "config": "93a1c4e20b9d3f11",
    "weights": "SmolLM2-135M-Instruct Q8_0",
    "page_size": "16",
    "format": "1",
}
BUSY = Load(
    running=2,
    queued=1,
    queued_prefill_tokens=540,
    recent_prefill_tokens=2048,
    prefill_tokens_per_s=480.5,
    decode_tokens_per_s=12.5,
    slots=2,
)
IDLE = Load()
TOKENS = tuple(range(100, 140))


def hex_key(key: PageKey) -> str:
    return key.to_bytes(8, "little").hex()


def page_keys() -> list[dict[str, object]]:
    cases: list[tuple[str, bytes | None, int, bytes, bool, tuple[int, ...]]] = [
        ("open swarm", None, 16, b"", False, TOKENS),
        ("less than a page", None, 16, b"", False, TOKENS[:15]),
        ("keyed swarm", b"a swarm's secret", 16, b"", False, TOKENS),
        ("another page size", None, 4, b"", False, TOKENS[:9]),
        ("a LoRA adapter as context", None, 16, b"lora:legal-v3", False, TOKENS),
        ("pages below a parent", None, 16, b"", True, TOKENS),
        ("the largest token ids", None, 1, b"", False, (0, 2**32 - 1)),
    ]
    made: list[dict[str, object]] = []
    for name, swarm_key, page_size, context, below, token_ids in cases:
        hasher = PageHasher(salt=derive_salt(swarm_key), page_size=page_size)
        parent = hasher.keys(range(page_size))[0] if below else None
        made.append(
            {
                "name": name,
                "swarm_key": None if swarm_key is None else swarm_key.hex(),
                "salt": derive_salt(swarm_key).hex(),
                "page_size": page_size,
                "context": context.hex(),
                "parent": None if parent is None else hex_key(parent),
                "token_ids": list(token_ids),
                "keys": [hex_key(key) for key in hasher.extend(parent, token_ids, context=context)],
            }
        )
    return made


FRAMES: dict[str, Frame] = {
    "request": Request(
        id="7f3a",
        endpoint="chat",
        body=b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}',
        fingerprint=fingerprint(FIELDS),
        prompt_pages=33,
        expected_cached_tokens=512,
        time_left_s=599.5,
    ),
    "request, impatient": Request(
        id="7f3a",
        endpoint="chat",
        body=b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}',
        fingerprint=fingerprint(FIELDS),
        prompt_pages=33,
        expected_cached_tokens=512,
        time_left_s=599.5,
        wait_at_most_s=0.25,
        after=Given(3, 1200),
    ),
    "continue": Request(
        id="7f3a",
        endpoint="completions",
        body=b'{"model":"m","prompt":"Hi","max_tokens":13}',
        fingerprint=fingerprint(FIELDS),
        prompt_pages=0,
        expected_cached_tokens=0,
        time_left_s=590.25,
        answered_token_ids=(9707, 0, 4294967295),
    ),
    "accept": Accept(id="7f3a", incarnation=1767225600000, seq=41, load=BUSY, yours=Given(4, 1500)),
    "accept, of a node that does not tell": Accept(id="7f3a", incarnation=1767225600000, seq=41, load=BUSY),
    "refuse, slower": Refuse(
        id="7f3a",
        code="slower",
        message="the next best node is faster",
        wait_s=0.75,
        incarnation=1767225600000,
        seq=41,
        load=BUSY,
        yours=Given(3, 1200),
    ),
    "refuse, overloaded": Refuse(
        id="7f3a",
        code="overloaded",
        message="40 requests wait",
        wait_s=3.25,
        incarnation=1767225600000,
        seq=41,
        load=BUSY,
    ),
    "refuse, bad request": Refuse(
        id="7f3a",
        code="bad_request",
        message="top_k is not supported",
        status=400,
        param="top_k",
        error_code="unsupported_parameter",
    ),
    "data": Data(
        id="7f3a", sse_json=b'{"choices":[{"delta":{"content":" \xc3\xa9t\xc3\xa9"}}]}', text=" été"
    ),
    "data with tokens": Data(id="7f3a", sse_json=b"{}", text="a", token_ids=(66, 4294967295)),
    "data without text": Data(id="7f3a", sse_json=b"{}", token_ids=()),
    "data, a whole answer": Data(id="7f3a", sse_json=b'{"choices":[]}', whole=True),
    "heartbeat": Heartbeat(id="7f3a"),
    "ask": Ask(id="7f3b", prompt_tokens=540, expected_cached_tokens=0),
    "ask, what is there of a prompt": Ask(
        id="7f3b", prompt_tokens=540, expected_cached_tokens=0, keys=(1, 2**64 - 1)
    ),
    "wait": Wait(
        id="7f3b",
        wait_s=0.5,
        incarnation=1767225600000,
        seq=42,
        load=IDLE,
        known_incarnation=7,
        yours=Given(),
    ),
    "wait, with what is there": Wait(
        id="7f3b", wait_s=0.5, incarnation=1767225600000, seq=42, load=IDLE, holding=Holding(1, 2)
    ),
    "cancel": Cancel(id="7f3a"),
    "end": EndFrame(
        id="7f3a",
        usage=Usage(prompt_tokens=540, completion_tokens=32),
        cached_tokens=512,
        incarnation=1767225600000,
        tree_version=1017,
        seq=43,
        load=IDLE,
        yours=Given(3, 1200),
    ),
    "error": ErrorFrame(id="7f3a", code="engine_failed", message="the engine's answer has no end"),
}

KEYS = tuple(PageHasher(salt=derive_salt(None), page_size=16).keys(range(64)))
TREE = Snapshot(
    addrs=("/ip4/192.168.1.20/tcp/4001", "/dns4/gpu.example/tcp/4001"),
    incarnation=1767225600000,
    seq=41,
    tree_version=1016,
    next_within_s=1.0,
    load=BUSY,
    paused_for_s=0.0,
    state=NodeState.ALIVE,
    reuse_tokens=16,
    keys=KEYS,
    cut=False,
    pages=len(KEYS),
)
HEARTBEAT = Snapshot(
    addrs=(),
    incarnation=1767225600000,
    seq=42,
    tree_version=1016,
    next_within_s=4.0,
    load=IDLE,
    paused_for_s=2.5,
    state=NodeState.DRAINING,
    reuse_tokens=1,
    keys=None,
    cut=False,
    pages=len(KEYS),
)
SNAPSHOTS = {"tree": (TREE, 262144), "tree, cut": (TREE, 370), "heartbeat": (HEARTBEAT, 262144)}


def plain(value: object) -> object:
    """A value as JSON has it: byte strings in hexadecimal."""
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case tuple():
            return [plain(item) for item in value]
    return value


def snapshot_json(snapshot: Snapshot) -> object:
    keys = snapshot.keys
    return plain({**asdict(snapshot), "keys": None if keys is None else tuple(map(hex_key, keys))})


def frame_case(name: str, frame: Frame) -> dict[str, object]:
    wire = encode_frame(frame)
    return {"name": name, "t": cbor2.loads(wire)["t"], "frame": plain(asdict(frame)), "wire": wire.hex()}


def snapshot_case(name: str, snapshot: Snapshot, bytes_max: int) -> dict[str, object]:
    """What a receiver reads from it: of a cut snapshot only the keys that are left."""
    wire = encode_snapshot(snapshot, bytes_max=bytes_max)
    received = decode_snapshot(wire, bytes_max=bytes_max)
    return {"name": name, "bytes_max": bytes_max, "snapshot": snapshot_json(received), "wire": wire.hex()}


def vectors() -> dict[str, object]:
    """All vectors, by the name of their file."""
    hello = Hello(fields=FIELDS, snapshot=encode_snapshot(TREE, bytes_max=262144))
    return {
        "page_keys.json": page_keys(),
        "frames.json": [frame_case(name, frame) for name, frame in FRAMES.items()],
        "snapshots.json": [snapshot_case(name, *case) for name, case in SNAPSHOTS.items()],
        "hello.json": [
            {
                "name": "hello",
                "fields": FIELDS,
                "fingerprint": fingerprint(FIELDS).hex(),
                "topic": topic(fingerprint(FIELDS)),
                "snapshot": hello.snapshot.hex(),
                "wire": encode_hello(hello).hex(),
            }
        ],
    }


if __name__ == "__main__":
    for file_name, cases in vectors().items():
        text = json.dumps(cases, indent=1, ensure_ascii=False) + "\n"
        Path(__file__).with_name(file_name).write_text(text, encoding="utf-8")
