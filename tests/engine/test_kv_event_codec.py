"""Cache events as servers write them, and everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from peerinfer.core.types import AllBlocksCleared, BlockRemoved, BlockStored
from peerinfer.engine.kv_endpoints import KvEndpoints, read_kv_endpoints
from peerinfer.engine.kv_event_codec import EventDecodeError, decode_batch, sglang_block_hashes

RECORDED = json.loads((Path(__file__).parent / "recordings" / "sglang_kv_events.json").read_text())
TOKENS = list(range(100, 132))
SPEC_KINDS_LEFT_OUT = ["sliding_window", "mamba", "chunked_local_attention"]


def vllm_stored(**fields: object) -> dict[str, object]:
    """A `BlockStored` of vLLM's published schema (vllm/distributed/kv_events.py), every field written."""
    return {
        "block_hashes": [11, 12],
        "parent_block_hash": 10,
        "token_ids": TOKENS,
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "kv_cache_spec_sliding_window": None,
    } | fields


def as_map(tag: str, fields: dict[str, object]) -> dict[str, object]:
    return {"type": tag} | fields


def as_row(tag: str, fields: dict[str, object]) -> list[object]:
    return [tag, *fields.values()]


def pack(*events: object) -> bytes:
    return bytes(msgpack.packb([1796025664.9, list(events), 0]))


def decode(*events: object) -> tuple[Any, ...]:
    return decode_batch(pack(*events)).events


@pytest.mark.parametrize("recording", ["default", "dynamo"])
def test_what_sglang_sent_is_read(recording: str) -> None:
    """Method: frames of SGLang 0.5.23: prompts that share, generated tokens, salts, an eviction, a flush."""
    names: dict[int, tuple[int, ...]] = {}
    kinds = set()
    for frame in RECORDED[recording]["live"]:
        assert len(frame) == 3
        for event in decode_batch(bytes.fromhex(frame[2])).events:
            kinds.add(type(event))
            if isinstance(event, BlockStored):
                assert (event.block_size, event.medium) == (16, "GPU")
                before = names[event.parent_block_hash] if event.parent_block_hash else ()
                for place, name in enumerate(event.block_hashes, start=1):
                    names[name] = before + event.token_ids[: place * 16]
    assert kinds == {BlockStored, BlockRemoved, AllBlocksCleared}
    plain = [name for name, tokens in names.items() if sglang_block_hashes(tokens, 16)[-1] == name]
    assert len(plain) > 280
    assert len(names) - len(plain) == (4 if recording == "dynamo" else 0), "the prompt with an extra_key"


def test_salted_blocks_that_sglang_sent_are_left_out() -> None:
    batches = [decode_batch(bytes.fromhex(frame[2])) for frame in RECORDED["default"]["live"]]
    assert [batch.left_out for batch in batches if batch.left_out] == [4]


def test_what_sglang_replayed_is_what_it_had_sent() -> None:
    replayed = {frame[2]: frame[3] for frame in RECORDED["default"]["replay"]}
    live = {frame[1]: frame[2] for frame in RECORDED["default"]["live"]}
    assert live.items() <= replayed.items()


@pytest.mark.parametrize("event", [as_map, as_row])
@pytest.mark.parametrize("batch", ["map", "row"])
def test_every_shape_that_vllm_had_is_read(event: Any, batch: str) -> None:
    """Arrays until 2026, maps since."""
    events = [
        event("BlockStored", vllm_stored()),
        event("BlockRemoved", {"block_hashes": [11], "medium": "CPU", "group_idx": None}),
        event("AllBlocksCleared", {}),
    ]
    wire = {"ts": 1.0, "events": events, "data_parallel_rank": 0} if batch == "map" else [1.0, events]
    assert decode_batch(msgpack.packb(wire)).events == (
        BlockStored((11, 12), 10, tuple(TOKENS), 16, "GPU"),
        BlockRemoved((11,), "CPU"),
        AllBlocksCleared(),
    )


def test_an_old_vllm_without_the_later_fields_is_read() -> None:
    stored = ["BlockStored", [11], None, TOKENS[:16], 16, None]
    assert decode(stored, ["BlockRemoved", [11]]) == (
        BlockStored((11,), None, tuple(TOKENS[:16]), 16, "GPU"),
        BlockRemoved((11,), "GPU"),
    )


def test_names_may_be_digests() -> None:
    """vLLM's, unless VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES makes them numbers."""
    digests = [bytes(range(32)), bytes(range(1, 33))]
    stored, removed = decode(
        as_map("BlockStored", vllm_stored(block_hashes=digests, parent_block_hash=b"\1" * 32)),
        as_map("BlockRemoved", {"block_hashes": digests[1:], "medium": "GPU"}),
    )
    assert stored.block_hashes[1] == removed.block_hashes[0]
    assert stored.parent_block_hash == int.from_bytes(b"\1" * 32, "big")


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"lora_id": 3}, 0),
        ({"lora_name": "adapter"}, 0),
        ({"cache_salt": "salt"}, 0),
        ({"group_idx": 1}, 0),
        *(({"kv_cache_spec_kind": kind}, 0) for kind in SPEC_KINDS_LEFT_OUT),
        ({"extra_keys": [["image", 7], None]}, 0),
        ({"extra_keys": [None, [b"salt"]]}, 1),
        ({"extra_keys": [[], []]}, 2),
        ({"extra_keys": None, "group_idx": None, "kv_cache_spec_kind": None}, 2),
        ({"kv_cache_spec_kind": "mla_attention"}, 2),
    ],
)
def test_only_what_tokens_alone_decide_is_told(fields: dict[str, object], kept: int) -> None:
    batch = decode_batch(pack(as_map("BlockStored", vllm_stored(**fields))))
    assert batch.left_out == 2 - kept
    told = [(event.block_hashes, event.token_ids) for event in batch.events if isinstance(event, BlockStored)]
    assert told == ([((11, 12)[:kept], tuple(TOKENS[: 16 * kept]))] if kept else [])


def test_removals_of_other_groups_are_not_told() -> None:
    assert decode(as_map("BlockRemoved", {"block_hashes": [1], "medium": "GPU", "group_idx": 1})) == ()


def test_pairs_of_tokens_are_read_by_their_first() -> None:
    """SGLang's pages under EAGLE."""
    pairs = [[token, token + 1] for token in TOKENS]
    (event,) = decode(as_map("BlockStored", vllm_stored(token_ids=pairs)))
    assert event.token_ids == tuple(TOKENS)


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x90",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\x91\x01\x01",
        msgpack.packb(5),
        msgpack.packb([None, []]),
        msgpack.packb([1.0]),
        msgpack.packb([1.0, {}]),
        msgpack.packb({"events": []}),
        pack([]),
        pack({}),
        pack(7),
        pack(["BlockMoved", [1]]),
        pack({"type": ["BlockStored"]}),
        pack(["BlockStored", [1], None, TOKENS, 16, None]),
        *(
            pack(as_map("BlockStored", vllm_stored(**fields)))
            for fields in (
                {"block_hashes": None},
                {"block_hashes": [1, 2.5]},
                {"block_hashes": [1, True]},
                {"block_hashes": [1, b"x" * 65]},
                {"parent_block_hash": "x"},
                {"token_ids": TOKENS[:31]},
                {"token_ids": [*TOKENS[:31], -1]},
                {"token_ids": [*TOKENS[:31], 2**32]},
                {"token_ids": [*TOKENS[:31], 2**64 - 1]},
                {"token_ids": [*TOKENS[:31], 1.5]},
                {"token_ids": [*TOKENS[:31], [1, 2]]},
                {"token_ids": [[1, 2, 3]] * 32},
                {"token_ids": [[1, None]] * 32},
                {"block_size": 0, "token_ids": []},
                {"block_size": -16},
                {"block_size": True},
                {"block_size": "16"},
                {"medium": 1},
                {"medium": "x" * 65},
                {"extra_keys": 1},
                {"extra_keys": [None]},
            )
        ),
        pack(as_map("BlockRemoved", {"block_hashes": {}})),
        pack(as_map("BlockRemoved", {"block_hashes": [None]})),
        pack(as_map("BlockRemoved", {"block_hashes": [1], "medium": []})),
    ],
)
def test_anything_else_is_an_error(wire: bytes) -> None:
    with pytest.raises(EventDecodeError):
        decode_batch(wire)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from([*vllm_stored(), "cache_salt"])
twisted = st.dictionaries(names, values, max_size=3).map(
    lambda fields: as_map("BlockStored", vllm_stored(**fields))
)
events = st.one_of(values, twisted, twisted.map(lambda event: list(event.values())))


@given(
    st.one_of(st.binary(), values.map(msgpack.packb), st.lists(events, max_size=3).map(lambda e: pack(*e)))
)
@example(b"\xdf\xff\xff\xff\xff")
def test_no_bytes_do_anything_but_decode_or_raise_the_error(wire: bytes) -> None:
    """Method: noise, noise as msgpack, and good events in which up to three fields are anything."""
    try:
        batch = decode_batch(wire)
    except EventDecodeError:
        return
    for event in batch.events:
        if isinstance(event, BlockStored):
            assert len(event.token_ids) == len(event.block_hashes) * event.block_size > 0
            sglang_block_hashes(event.token_ids, event.block_size)


@given(st.data())
def test_a_recorded_message_with_any_byte_changed_decodes_or_raises_the_error(data: st.DataObject) -> None:
    wire = bytearray.fromhex(data.draw(st.sampled_from(RECORDED["default"]["live"]))[2])
    for place in data.draw(st.lists(st.integers(0, len(wire) - 1), min_size=1, max_size=4)):
        wire[place] = data.draw(st.integers(0, 255))
    try:
        decode_batch(bytes(wire[: data.draw(st.integers(0, len(wire)))]))
        decode_batch(bytes(wire))
    except EventDecodeError:
        pass


def test_blocks_have_names_of_their_own_only_for_tokens() -> None:
    assert sglang_block_hashes([], 16) == sglang_block_hashes([1] * 15, 16) == ()
    with pytest.raises(ValueError, match="token id"):
        sglang_block_hashes([2**32], 1)


DESCRIBED = {
    "publisher": "zmq",
    "endpoint_host": "127.0.0.1",
    "endpoint_port_base": 5557,
    "topic": "kv",
    "block_size": 16,
    "dp_size": 1,
    "replay_endpoint_port_base": 5558,
}


def test_endpoints_are_read_from_what_the_server_says() -> None:
    """A publisher on all addresses is reached at the server's own."""
    expected = KvEndpoints(
        live="tcp://127.0.0.1:5557",
        replay="tcp://127.0.0.1:5558",
        topic="kv",
        block_size=16,
        sglang_names=True,
    )
    assert read_kv_endpoints({"kv_events": DESCRIBED}, host="gpu1") == expected
    for wildcard, host, live in (
        ("*", "gpu1", "gpu1"),
        ("0.0.0.0", "10.0.0.1", "10.0.0.1"),
        ("::", "::1", "[::1]"),
    ):
        read = read_kv_endpoints({"kv_events": DESCRIBED | {"endpoint_host": wildcard}}, host=host)
        assert read is not None
        assert read.live == f"tcp://{live}:5557"
    no_replay = {field: value for field, value in DESCRIBED.items() if field != "replay_endpoint_port_base"}
    read = read_kv_endpoints({"kv_events": no_replay}, host="gpu1")
    assert read is not None
    assert read.replay is None


@pytest.mark.parametrize(
    "server_info",
    [
        {},
        {"kv_events": None},
        {"kv_events": []},
        {"kv_events": DESCRIBED | {"dp_size": 2}},
        {"kv_events": DESCRIBED | {"endpoint_port_base": None}},
        {"kv_events": DESCRIBED | {"endpoint_port_base": 70000}},
        {"kv_events": DESCRIBED | {"endpoint_host": None}},
        {"kv_events": DESCRIBED | {"topic": 5}},
    ],
)
def test_a_server_without_events_that_can_be_followed_has_no_endpoints(
    server_info: dict[str, object],
) -> None:
    assert read_kv_endpoints(server_info, host="gpu1") is None
