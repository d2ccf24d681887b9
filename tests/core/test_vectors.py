"""The fixed vectors in tests/vectors: what any implementation of docs/protocol.md must agree with."""

from __future__ import annotations

import json
import runpy
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import cbor2
import pytest

from peerinfer.core.fingerprint import Hello, decode_hello, encode_hello, fingerprint, topic
from peerinfer.core.frame_codec import decode_frame, encode_frame
from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.snapshot import decode_snapshot, encode_snapshot

VECTORS = Path(__file__).parents[1] / "vectors"
MAKE = runpy.run_path(str(VECTORS / "make.py"))


def cases(file_name: str) -> list[Any]:
    stored = json.loads((VECTORS / file_name).read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["name"]) for case in stored]


def test_the_files_are_what_make_writes() -> None:
    """Goal: a change of the wire shows as a diff in these files, and nothing else changes them."""
    made = MAKE["vectors"]()
    assert {path.name for path in VECTORS.glob("*.json")} == set(made)
    for file_name, vectors in made.items():
        assert json.loads((VECTORS / file_name).read_text(encoding="utf-8")) == vectors


@pytest.mark.parametrize("case", cases("page_keys.json"))
def test_page_keys_are_the_vectors(case: dict[str, Any]) -> None:
    """Method: once with the product's hasher, once with hashlib as docs/protocol.md says."""
    swarm_key = case["swarm_key"] and bytes.fromhex(case["swarm_key"])
    salt, context = bytes.fromhex(case["salt"]), bytes.fromhex(case["context"])
    assert derive_salt(swarm_key) == salt
    keys = [bytes.fromhex(key) for key in case["keys"]]
    previous = b""
    if context:
        previous = blake2b(context, digest_size=8, key=salt, person=b"peerinfer key_0").digest()
    parent = None
    if case["parent"]:
        previous = bytes.fromhex(case["parent"])
        parent = int.from_bytes(previous, "little")
    hasher = PageHasher(salt=salt, page_size=case["page_size"])
    hashed = hasher.extend(parent, case["token_ids"], context=context)
    assert [key.to_bytes(8, "little") for key in hashed] == keys
    for number, key in enumerate(keys):
        page = case["token_ids"][number * case["page_size"] : (number + 1) * case["page_size"]]
        tokens = b"".join(token.to_bytes(4, "little") for token in page)
        assert blake2b(previous + tokens, digest_size=8, key=salt).digest() == key
        previous = key


@pytest.mark.parametrize("case", cases("frames.json"))
def test_frames_are_the_vectors(case: dict[str, Any]) -> None:
    wire = bytes.fromhex(case["wire"])
    frame = decode_frame(wire)
    assert MAKE["plain"](asdict(frame)) == case["frame"]
    assert encode_frame(frame) == wire
    fields = cbor2.loads(wire)
    assert fields["t"] == case["t"]
    assert set(fields) - {"t"} <= set(case["frame"]), "fields have the names they have in core/frames.py"


def test_every_kind_of_frame_has_a_vector() -> None:
    kinds = ["request", "continue", "accept", "refuse", "data", "heartbeat", "cancel", "end", "error"]
    kinds += ["ask", "wait"]
    stored = json.loads((VECTORS / "frames.json").read_text(encoding="utf-8"))
    assert {case["t"] for case in stored} == set(kinds)


def test_the_document_names_every_field() -> None:
    """Goal: docs/protocol.md does not fall behind. Method: each name on the wire is in it, as code."""
    document = (VECTORS.parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")
    names: set[str] = set()
    for file_name in ("frames.json", "snapshots.json", "hello.json"):
        for case in json.loads((VECTORS / file_name).read_text(encoding="utf-8")):
            fields = cbor2.loads(bytes.fromhex(case["wire"]))
            for inner in ("load", "usage", "holding"):
                names |= set(fields.get(inner) or {})
            names |= set(fields)
    assert {name for name in names if f"`{name}`" not in document} == set()


@pytest.mark.parametrize("case", cases("snapshots.json"))
def test_snapshots_are_the_vectors(case: dict[str, Any]) -> None:
    wire = bytes.fromhex(case["wire"])
    assert len(wire) <= case["bytes_max"]
    snapshot = decode_snapshot(wire, bytes_max=case["bytes_max"])
    assert MAKE["snapshot_json"](snapshot) == case["snapshot"]
    assert encode_snapshot(snapshot, bytes_max=case["bytes_max"]) == wire


@pytest.mark.parametrize("case", cases("hello.json"))
def test_the_hello_is_the_vector(case: dict[str, Any]) -> None:
    wire = bytes.fromhex(case["wire"])
    hello = decode_hello(wire, bytes_max=len(wire))
    assert hello == Hello(fields=case["fields"], snapshot=bytes.fromhex(case["snapshot"]))
    assert encode_hello(hello) == wire
    assert fingerprint(case["fields"]).hex() == case["fingerprint"]
    assert topic(fingerprint(case["fields"])) == case["topic"]
