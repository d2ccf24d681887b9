"""What SGLang's and vLLM's cache events say, as `CacheEvent`s; `EventDecodeError` on anything else.

A payload is msgpack: a batch of a time, events and a rank, each of which is written as an array or as a map,
depending on the server and its version (SGLang 0.5.23: an array of maps; vLLM: arrays until 2026, maps
since). All of these are read; fields that nobody needs are skipped.

Only what a prompt's tokens alone can find again is told. Blocks computed under a LoRA adapter, a cache salt
or with images are left out, and so is all that follows them; so are the groups of a hybrid model other than
its first, unless that one is full attention. A tree that claims too little costs time, one that claims more
breaks expectations. (Paper: updateTrie and evictLRUTrie, as the engine decides them.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct, error, pack
from typing import Any

import msgpack

from peerinfer.core.types import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent

BLOCK_SIZE_MAX = 65536  # guess: no engine's block is larger
HASH_BYTES_MAX = 64  # vLLM's digests have 32
MEDIUM_CHARS_MAX = 64  # guess
DEFAULT_MEDIUM = "GPU"
_FULL_ATTENTION = (None, "full_attention", "mla_attention", "sink_full_attention")

_BATCH_ROW = ("ts", "events")
_STORED_ROW = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    *("extra_keys", "group_idx", "kv_cache_spec_kind"),
)
_FIRST_BYTES = Struct(">q")
_REMOVED_ROW = ("block_hashes", "medium", "group_idx")


class EventDecodeError(ValueError):
    """The bytes are no batch of cache events as SGLang or vLLM write them."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """One message's events, in order."""

    events: tuple[CacheEvent, ...]
    left_out: int
    """Blocks that depend on more than their tokens."""


def decode_batch(payload: bytes) -> EventBatch:
    """The events of one message. Raises `EventDecodeError`, and nothing else, on bytes that are none."""
    try:
        batch = _fields(msgpack.unpackb(payload), _BATCH_ROW)
    except (ValueError, RecursionError) as problem:
        raise EventDecodeError(f"no msgpack of a batch: {problem}") from None
    if not isinstance(batch.get("ts"), int | float):
        raise EventDecodeError("a batch without its time")
    events: list[CacheEvent] = []
    left_out = 0
    for packed in _list(batch.get("events")):
        tag, rest = _tag(packed)
        match tag:
            case "BlockStored":
                stored, blocks = _read_stored(_fields(rest, _STORED_ROW))
                events += stored
                left_out += blocks
            case "BlockRemoved":
                events += _read_removed(_fields(rest, _REMOVED_ROW))
            case "AllBlocksCleared":
                events.append(AllBlocksCleared())
            case _:
                shown = tag if isinstance(tag, str) else type(tag).__name__  # a nest has no short repr
                raise EventDecodeError(f"an event of an unknown type: {shown!r:.40}")
    return EventBatch(tuple(events), left_out)


def sglang_block_hashes(token_ids: Sequence[int], block_size: int) -> tuple[int, ...]:
    """The names that SGLang gives to a prompt's whole blocks (measured: the same on 3,988 blocks).

    Raises ValueError for a token id that is no uint32.
    """
    packed = _pack_tokens(token_ids)
    step = 4 * block_size
    hashes: list[int] = []
    digest = b""
    for start in range(0, len(packed) - step + 1, step):
        digest = sha256(digest + packed[start : start + step]).digest()
        hashes += _FIRST_BYTES.unpack_from(digest)
    return tuple(hashes)


def _tag(packed: object) -> tuple[object, object]:
    """An event's type, and its fields."""
    if isinstance(packed, list):
        return (packed[0], packed[1:]) if packed else (None, packed)
    return (packed.get("type"), packed) if isinstance(packed, dict) else (None, packed)


def _fields(packed: object, row: Sequence[str]) -> Mapping[str, object]:
    """A map as it is, or an array by the names of its places."""
    if isinstance(packed, dict):
        return packed
    return dict(zip(row, _list(packed), strict=False))


def _read_stored(event: Mapping[str, object]) -> tuple[Sequence[CacheEvent], int]:
    """The event as far as tokens alone decide, and how many of its blocks are beyond that."""
    hashes = _hashes(event.get("block_hashes"))
    size, blocks = event.get("block_size"), len(hashes)
    if type(size) is not int or not 0 < size <= BLOCK_SIZE_MAX:
        raise EventDecodeError("a block size that is none")
    tokens = _tokens(event.get("token_ids"))
    if len(tokens) != blocks * size:
        raise EventDecodeError(f"{blocks} blocks of {size} tokens with {len(tokens)} tokens")
    plain = _plain_blocks(event, blocks)
    parent = event.get("parent_block_hash")
    parent_hash = None if parent is None else _hash(parent)
    medium = _medium(event)
    if plain == 0:
        return (), blocks
    stored = BlockStored(hashes[:plain], parent_hash, tokens[: plain * size], size, medium)
    return (stored,), blocks - plain


def _plain_blocks(event: Mapping[str, object], blocks: int) -> int:
    """How many of a stored chain's blocks depend on nothing but tokens."""
    if any(event.get(field) is not None for field in ("lora_id", "lora_name", "cache_salt")):
        return 0
    if event.get("group_idx") not in (None, 0) or event.get("kv_cache_spec_kind") not in _FULL_ATTENTION:
        return 0
    extra_keys = event.get("extra_keys")
    if extra_keys is None:
        return blocks
    extras = _list(extra_keys)
    if len(extras) != blocks:
        raise EventDecodeError(f"{blocks} blocks with {len(extras)} extra keys")
    return next((block for block, extra in enumerate(extras) if extra), blocks)


def _read_removed(event: Mapping[str, object]) -> Sequence[CacheEvent]:
    hashes, medium = _hashes(event.get("block_hashes")), _medium(event)
    return (BlockRemoved(hashes, medium),) if hashes and event.get("group_idx") in (None, 0) else ()


def _hashes(packed: object) -> tuple[int, ...]:
    return tuple(map(_hash, _list(packed)))


def _hash(packed: object) -> int:
    """A block's name: a whole number, or a digest."""
    if type(packed) is int:
        return packed
    if isinstance(packed, bytes) and len(packed) <= HASH_BYTES_MAX:
        return int.from_bytes(packed, "big")
    raise EventDecodeError("a block hash that is none")


def _tokens(packed: object) -> tuple[int, ...]:
    tokens = _list(packed)
    if any(type(token) is not int for token in tokens):
        tokens = [_first_of_pair(pair) for pair in tokens]
    try:
        _pack_tokens(tokens)
    except ValueError as problem:
        raise EventDecodeError(str(problem)) from None
    return tuple(tokens)


def _first_of_pair(pair: object) -> int:
    """Under EAGLE, SGLang names pages by pairs: a token and the one after it.

    What follows a page's last token is not in our keys, so the last page of a match may be one that the
    engine does not reuse.
    """
    if isinstance(pair, list) and [*map(type, pair)] == [int, int]:
        return int(pair[0])
    raise EventDecodeError("a token that is none")


def _pack_tokens(tokens: Sequence[int]) -> bytes:
    try:
        return pack(f"<{len(tokens)}I", *tokens)
    except error:
        raise ValueError("a token id is not a whole number from 0 to 4294967295") from None


def _medium(event: Mapping[str, object]) -> str:
    medium = event.get("medium")
    if medium is None:
        return DEFAULT_MEDIUM
    if not isinstance(medium, str) or len(medium) > MEDIUM_CHARS_MAX:
        raise EventDecodeError("a medium that is none")
    return medium


def _list(packed: object) -> list[Any]:
    if not isinstance(packed, list):
        raise EventDecodeError(f"a list is missing; there is {type(packed).__name__}")
    return packed
