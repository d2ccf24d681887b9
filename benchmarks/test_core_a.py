"""What the core costs per request, per token and per round: hashing, the own tree, the codecs.

Run with `make bench`. Reports and asserts no times; every round has other prompts and other match depths.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

from peerinfer.core.frame_codec import decode_frame, encode_frame
from peerinfer.core.frames import Data, EndFrame, Frame, Request
from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.snapshot import Snapshot, decode_snapshot, encode_snapshot
from peerinfer.core.types import Load, NodeState, PageKey, Usage

PAGES = 20_000
PROMPT_TOKENS = 540
CHAIN_PAGES = PROMPT_TOKENS // 16
SNAPSHOT_BYTES_MAX = 256 * 1024


def rounds(
    benchmark: BenchmarkFixture,
    function: Callable[..., Any],
    *,
    setup: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]],
    number: int,
) -> Any:
    """Time `function` so often, each time with the arguments that `setup` makes for it."""
    return benchmark.pedantic(function, setup=setup, rounds=number)  # type: ignore[no-untyped-call]


def new_key(random: Random) -> PageKey:
    return random.getrandbits(64)


def chains(random: Random) -> list[list[PageKey]]:
    """Prompts of 33 pages, of which the first 10 are one of 20 common beginnings; `PAGES` in all."""
    beginnings = [[new_key(random) for _ in range(10)] for _ in range(20)]
    fresh = CHAIN_PAGES - 10
    return [
        random.choice(beginnings) + [new_key(random) for _ in range(fresh)]
        for _ in range((PAGES - 200) // fresh)
    ]


def full_tree(made: list[list[PageKey]]) -> RadixTree:
    tree = RadixTree(capacity_pages=PAGES)
    for now, chain in enumerate(made):
        tree.insert(chain, now=float(now))
    return tree


def snapshot(keys: tuple[PageKey, ...]) -> Snapshot:
    return Snapshot(
        addrs=("/ip4/192.168.1.20/tcp/4001",),
        incarnation=1767225600000,
        seq=1,
        tree_version=1,
        next_within_s=1.0,
        load=Load(),
        paused_for_s=0.0,
        state=NodeState.ALIVE,
        reuse_tokens=1,
        keys=keys,
        cut=False,
        pages=len(keys),
    )


def test_hashing_540_tokens(benchmark: BenchmarkFixture) -> None:
    random, hasher = Random(1), PageHasher(salt=derive_salt(None), page_size=16)

    def another_prompt() -> tuple[tuple[list[int]], dict[str, Any]]:
        return ([random.randrange(50_000) for _ in range(PROMPT_TOKENS)],), {}

    keys = rounds(benchmark, hasher.keys, setup=another_prompt, number=2000)
    assert len(keys) == CHAIN_PAGES


def test_matching_a_prompt(benchmark: BenchmarkFixture) -> None:
    random = Random(2)
    made = chains(random)
    tree = full_tree(made)

    def another_prompt() -> tuple[tuple[list[PageKey]], dict[str, Any]]:
        depth = random.randint(0, CHAIN_PAGES)
        return (random.choice(made)[:depth] + [new_key(random) for _ in range(CHAIN_PAGES - depth)],), {}

    rounds(benchmark, tree.match_prefix, setup=another_prompt, number=2000)


def test_inserting_a_prompt_into_a_full_tree(benchmark: BenchmarkFixture) -> None:
    """updateTrie with about half of the prompt new, and as many evictLRUTrie."""
    random, now = Random(3), count(PAGES)
    made = chains(random)
    tree = full_tree(made)

    def insert(chain: list[PageKey], at: float) -> None:
        tree.insert(chain, now=at)

    def another_prompt() -> tuple[tuple[list[PageKey], float], dict[str, Any]]:
        depth = random.randint(0, CHAIN_PAGES)
        chain = random.choice(made)[:depth]
        depth = tree.match_prefix(chain)
        return (chain[:depth] + [new_key(random) for _ in range(CHAIN_PAGES - depth)], float(next(now))), {}

    rounds(benchmark, insert, setup=another_prompt, number=2000)
    tree.check()
    assert len(tree) <= PAGES


def test_touching_a_prompt(benchmark: BenchmarkFixture) -> None:
    random, now = Random(4), count(PAGES)
    made = chains(random)
    tree = full_tree(made)

    def touch(chain: list[PageKey], at: float) -> None:
        tree.touch(chain, now=at)

    rounds(benchmark, touch, setup=lambda: ((random.choice(made), float(next(now))), {}), number=2000)


def test_ordering_twenty_thousand_pages(benchmark: BenchmarkFixture) -> None:
    random, now = Random(5), count(PAGES)
    made = chains(random)
    tree = full_tree(made)

    def use_some() -> tuple[tuple[()], dict[str, Any]]:
        for _ in range(50):
            tree.touch(random.choice(made), now=float(next(now)))
        return (), {}

    keys = rounds(benchmark, tree.ordered_keys, setup=use_some, number=50)
    assert len(keys) == len(tree)


def test_memory_of_twenty_thousand_pages(benchmark: BenchmarkFixture) -> None:
    """Time to fill the tree; the extra info has the bytes per page, keys included."""
    tracemalloc.start()
    made = chains(Random(6))
    tree = full_tree(made)
    made.clear()  # the tree owns the keys now
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    benchmark.extra_info["bytes_per_page"] = round(held / len(tree))
    rounds(benchmark, full_tree, setup=lambda: ((chains(Random(6)),), {}), number=3)


def test_encoding_a_snapshot_of_twenty_thousand_pages(benchmark: BenchmarkFixture) -> None:
    random = Random(7)
    value = snapshot(tuple(new_key(random) for _ in range(PAGES)))
    assert len(benchmark(encode_snapshot, value, bytes_max=SNAPSHOT_BYTES_MAX)) < SNAPSHOT_BYTES_MAX


def test_decoding_a_snapshot_of_twenty_thousand_pages(benchmark: BenchmarkFixture) -> None:
    random = Random(8)
    value = snapshot(tuple(new_key(random) for _ in range(PAGES)))
    wire = encode_snapshot(value, bytes_max=SNAPSHOT_BYTES_MAX)
    assert benchmark(decode_snapshot, wire, bytes_max=SNAPSHOT_BYTES_MAX) == value


DATA = Data(
    id="5d0c1f7e9a3b4c6d",
    sse_json=b'{"id":"chatcmpl-5d0c1f7e","object":"chat.completion.chunk","created":1767225600,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" hello"},"finish_reason":null}]}',
    text=" hello",
    token_ids=(28120,),
)
REQUEST = Request(
    id="5d0c1f7e9a3b4c6d",
    endpoint="chat",
    body=b'{"messages":[{"role":"user","content":"' + b"word " * 430 + b'"}]}',
    fingerprint=bytes(16),
    prompt_pages=CHAIN_PAGES,
    expected_cached_tokens=512,
    time_left_s=600.0,
)
END = EndFrame(
    id="5d0c1f7e9a3b4c6d",
    usage=Usage(prompt_tokens=PROMPT_TOKENS, completion_tokens=32),
    cached_tokens=512,
    incarnation=1767225600000,
    tree_version=1017,
    seq=43,
    load=Load(),
)


def _round_trip(benchmark: BenchmarkFixture, frame: Frame) -> None:
    assert benchmark(lambda: decode_frame(encode_frame(frame))) == frame


def test_encoding_a_data_frame(benchmark: BenchmarkFixture) -> None:
    assert len(benchmark(encode_frame, DATA)) > len(DATA.sse_json)


def test_decoding_a_data_frame(benchmark: BenchmarkFixture) -> None:
    assert benchmark(decode_frame, encode_frame(DATA)) == DATA


def test_a_request_frame_there_and_back(benchmark: BenchmarkFixture) -> None:
    _round_trip(benchmark, REQUEST)


def test_an_end_frame_there_and_back(benchmark: BenchmarkFixture) -> None:
    _round_trip(benchmark, END)
