"""What a node tells its peers each round: its state, its load and its whole tree (sendTrie, paper §2, §3.4).

A snapshot is complete state and never a difference, so loss, duplication and reordering heal in one round.
`(incarnation, seq)` orders load, push-back and liveness; `(incarnation, tree_version)` orders the tree. A
snapshot without keys is a heartbeat that only names the tree's version. Keys come in an order whose every
head is closed under parents, so cutting the tail leaves a tree; what a cut tree lacks is unknown, not
absent. On the wire it is a CBOR map; fields and limits: docs/protocol.md, vectors: tests/vectors/.
"""

from __future__ import annotations

from dataclasses import dataclass

import cbor2

from peerinfer.core.errors import WireError, WireVersionError
from peerinfer.core.page_keys import KEY_BYTES
from peerinfer.core.types import Load, NodeState, PageKey
from peerinfer.core.wire import Fields, clamped, is_label, load_fields, packed_keys, read_map, whole

SNAPSHOT_FORMAT = 1
"""Raised when an old receiver would misread a new snapshot; new fields that it may ignore do not count."""
ADDRS_MAX = 8
ADDR_CHARS_MAX = 512
NEXT_WITHIN_S_MIN = 0.001
NEXT_WITHIN_S_MAX = 3600.0
"""A peer is suspected after a multiple of what it promised, so no promise may be for ever."""
PAUSED_FOR_S_MAX = 3600.0
_LENGTH_BYTES_MAX = 5  # the head of a byte string of up to 4 GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One node's state at one moment."""

    addrs: tuple[str, ...]
    """Multiaddrs under which it can be dialled, without `/p2p/…`; at most 8."""
    incarnation: int
    seq: int
    """Rises with every message of this incarnation."""
    tree_version: int
    next_within_s: float
    """A promise: the next message comes within this."""
    load: Load
    paused_for_s: float
    """Push-back: do not forward here for so long, from receipt on; 0 is none."""
    state: NodeState
    reuse_tokens: int
    """The engine reuses cached tokens in multiples of this."""
    keys: tuple[PageKey, ...] | None
    """The tree, every head closed under parents; None: a heartbeat that only names the version."""
    cut: bool
    """Whether `keys` lacks the tree's tail."""
    pages: int
    """The size of the whole tree."""


def encode_snapshot(snapshot: Snapshot, *, bytes_max: int) -> bytes:
    """The bytes to send, at most `bytes_max`: the tree is cut from its tail to fit.

    Addresses that peers would refuse, or beyond eight, are left out. Raises ValueError if not even the
    fields without the tree fit.
    """
    keys = snapshot.keys
    if keys is None:
        assert not snapshot.cut
        payload = cbor2.dumps(_fields(snapshot))
        room = bytes_max - len(payload)
    else:
        assert snapshot.cut == (len(keys) < snapshot.pages)
        assert len(keys) <= snapshot.pages
        head = len(cbor2.dumps({**_fields(snapshot), "keys": b"", "cut": True}))
        room = bytes_max - head - _LENGTH_BYTES_MAX
        keys = keys[: max(0, room) // KEY_BYTES]
        payload = cbor2.dumps(
            {**_fields(snapshot), "keys": packed_keys(keys), "cut": len(keys) < snapshot.pages}
        )
    if room < 0:
        raise ValueError(f"a snapshot needs more than {bytes_max} bytes even without its tree")
    return payload


def decode_snapshot(payload: bytes, *, bytes_max: int) -> Snapshot:
    """A peer's snapshot. Raises WireError, or WireVersionError for a format that this node does not speak."""
    fields = read_map(payload, bytes_max=bytes_max)
    check_format(fields, SNAPSHOT_FORMAT)
    pages = fields.uint("pages")
    keys, cut = _read_tree(fields, pages=pages, bytes_max=bytes_max)
    return Snapshot(
        addrs=fields.labels("addrs", items_max=ADDRS_MAX, chars_max=ADDR_CHARS_MAX),
        incarnation=fields.uint("incarnation"),
        seq=fields.uint("seq"),
        tree_version=fields.uint("tree_version"),
        next_within_s=fields.real("next_within_s", least=NEXT_WITHIN_S_MIN, most=NEXT_WITHIN_S_MAX),
        load=fields.load("load"),
        paused_for_s=fields.real("paused_for_s", most=PAUSED_FOR_S_MAX),
        state=_read_state(fields),
        reuse_tokens=fields.uint("reuse_tokens", least=1),
        keys=keys,
        cut=cut,
        pages=pages,
    )


def check_format(fields: Fields, spoken: int) -> None:
    """Raise WireVersionError if the field `v` names another format than the one that is spoken here."""
    if (version := fields.uint("v")) != spoken:
        raise WireVersionError(f"format {version}; this node speaks {spoken}")


def _fields(snapshot: Snapshot) -> dict[str, object]:
    """All fields but the tree's."""
    addrs = [addr for addr in snapshot.addrs if is_label(addr, chars_max=ADDR_CHARS_MAX)]
    return {
        "v": SNAPSHOT_FORMAT,
        "addrs": addrs[:ADDRS_MAX],
        "incarnation": whole(snapshot.incarnation),
        "seq": whole(snapshot.seq),
        "tree_version": whole(snapshot.tree_version),
        "next_within_s": clamped(snapshot.next_within_s, least=NEXT_WITHIN_S_MIN, most=NEXT_WITHIN_S_MAX),
        "load": load_fields(snapshot.load),
        "paused_for_s": clamped(snapshot.paused_for_s, most=PAUSED_FOR_S_MAX),
        "state": str(snapshot.state),
        "reuse_tokens": whole(snapshot.reuse_tokens, least=1),
        "pages": whole(snapshot.pages),
    }


def _read_tree(fields: Fields, *, pages: int, bytes_max: int) -> tuple[tuple[PageKey, ...] | None, bool]:
    """The keys, and whether they are cut; the three fields must not contradict each other."""
    if not fields.has("keys"):
        return None, False
    keys = fields.page_keys("keys", bytes_max=bytes_max)
    cut = fields.flag("cut")
    if len(keys) > pages or cut != (len(keys) < pages):
        raise WireError("keys: their count contradicts pages and cut")
    if len(set(keys)) != len(keys):
        raise WireError("keys: one is there twice")
    return keys, cut


def _read_state(fields: Fields) -> NodeState:
    try:
        return NodeState(fields.label("state"))
    except ValueError:
        raise WireError("state: unknown") from None
