"""What two nodes must have in common to trust each other's page keys, and how they find out.

Nodes whose fingerprint fields are all equal share a topic; their keys mean the same. Others share the
overlay only. Since a differing field splits a swarm silently, a node that pulls from another one gets a
hello: the fields themselves, so that `peers` can name the one that differs, and a complete snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import cbor2

from peerinfer.core.errors import WireError
from peerinfer.core.snapshot import check_format
from peerinfer.core.swarm_key import SwarmKey
from peerinfer.core.wire import is_label, read_map

FINGERPRINT_BYTES = 16
HELLO_FORMAT = 1
HELLO_FIELDS_MAX = 32
FIELD_NAME_CHARS_MAX = 64
FIELD_VALUE_CHARS_MAX = 512
ROLE_FIELD = "role"
"""The one field of a peer that serves nothing; its value says what the peer is for, e.g. `bootstrap`."""
SWARM_KEY_FIELD = "swarm_key"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")  # would let a peer write on our terminal


@dataclass(frozen=True, slots=True)
class Hello:
    """The reply to a pull."""

    fields: Mapping[str, str]
    """The fingerprint's fields."""
    snapshot: bytes
    """An encoded snapshot with its tree; decoded on its own, once the fields were found equal."""


def fingerprint(fields: Mapping[str, str]) -> bytes:
    """16 bytes that are equal for equal fields only: blake2b over canonical CBOR (RFC 8949 §4.2)."""
    return blake2b(cbor2.dumps(dict(fields), canonical=True), digest_size=FINGERPRINT_BYTES).digest()


def swarm_fields(fields: Mapping[str, str], key: SwarmKey | None) -> dict[str, str]:
    """The fields of a node in a swarm: in a closed one they name its key, which salts all page keys."""
    return dict(fields) if key is None else {**fields, SWARM_KEY_FIELD: key.key_id}


def topic(fingerprint: bytes) -> str:
    """The gossip topic of the nodes with this fingerprint."""
    return f"peerinfer/1/{fingerprint.hex()}"


def differing_fields(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the fields that differ or that only one has, sorted."""
    return tuple(sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name)))


def encode_hello(hello: Hello) -> bytes:
    """The bytes to send. Raises ValueError for fields that a peer would refuse."""
    if problem := _problem(dict(hello.fields)):
        raise ValueError(problem)
    return cbor2.dumps({"v": HELLO_FORMAT, "fields": dict(hello.fields), "snapshot": hello.snapshot})


def decode_hello(payload: bytes, *, bytes_max: int) -> Hello:
    """A peer's hello. Raises WireError, or WireVersionError for a format that this node does not speak."""
    fields = read_map(payload, bytes_max=bytes_max)
    check_format(fields, HELLO_FORMAT)
    named = dict(fields.map("fields").items())
    if problem := _problem(named):
        raise WireError(problem)
    return Hello(
        fields={str(name): str(value) for name, value in named.items()},
        snapshot=fields.blob("snapshot", bytes_max=bytes_max),
    )


def _problem(fields: Mapping[object, object] | Mapping[str, str]) -> str | None:
    if len(fields) > HELLO_FIELDS_MAX:
        return f"fields: more than {HELLO_FIELDS_MAX}"
    for name, value in fields.items():
        if not is_label(name, chars_max=FIELD_NAME_CHARS_MAX):
            return f"fields: a name is not 1 to {FIELD_NAME_CHARS_MAX} printable ASCII characters"
        if type(value) is not str or len(value) > FIELD_VALUE_CHARS_MAX or _CONTROL.search(value):
            return f"fields: {name} is not at most {FIELD_VALUE_CHARS_MAX} characters without controls"
    return None
