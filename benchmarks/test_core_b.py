"""What a decision costs, and what keeping the estimates up to date does.

Run with `make bench`. Reports and asserts no times; every round has another prompt, which each peer holds
to another depth. To reach: a decision after hashing in 20 µs among 4 peers of 20,000 pages, and in 1.5 ms
among 1,000 peers of 2,000 pages; a snapshot of 20,000 pages of which a tenth changed in 5 ms; 100 bytes a
page.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import count
from math import inf
from random import Random
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from peerinfer.config import Config
from peerinfer.core.peer_view import Applied, PeerView
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.rent import RentLedger
from peerinfer.core.router import OwnState, Prompt, Ranking, rank
from peerinfer.core.snapshot import Snapshot
from peerinfer.core.types import Load, NodeState, PageKey, PeerId

CONFIG = Config()
ME = PeerId("12D3KooW" + "m" * 44)
PROMPT_PAGES = 33
PROMPT_TOKENS = 540
NOW = 1000.0
ROUNDS = 1000


def peer_id(number: int) -> PeerId:
    return PeerId(f"12D3KooW{number:044}")


def snapshot(keys: list[PageKey], *, version: int, load: Load) -> Snapshot:
    return Snapshot(
        addrs=(),
        incarnation=1,
        seq=version,
        tree_version=version,
        next_within_s=1.0,
        load=load,
        paused_for_s=0.0,
        state=NodeState.ALIVE,
        reuse_tokens=1,
        keys=tuple(keys),
        cut=False,
        pages=len(keys),
    )


class Swarm:
    """A view of peers, each of which holds all prompts of a pool to random depths, and prompts of its own."""

    def __init__(self, *, peers: int, pages: int, prompts: int, holders: float, seed: int) -> None:
        self.random = Random(seed)
        self.prompts = [self.new_prompt() for _ in range(prompts)]
        self.rents = RentLedger(CONFIG.routing)
        own = RadixTree(capacity_pages=20_000)
        for at, prompt in enumerate(self.prompts):
            own.insert(self.cut(prompt), now=float(at))
        self.view = PeerView(me=ME, own=own, page_size=16, config=CONFIG)
        for number in range(peers):
            keys: list[PageKey] = []
            for prompt in self.prompts:
                if self.random.random() < holders:
                    keys += self.cut(prompt)
            while len(keys) < pages:
                keys += self.new_prompt()
            load = Load(
                prefill_tokens_per_s=self.random.uniform(800.0, 1200.0),
                queued_prefill_tokens=self.random.randrange(200),
                slots=4,
            )
            self.view.apply_snapshot(peer_id(number), snapshot(keys[:pages], version=1, load=load), now=NOW)
            self.view.observe_round_trip(peer_id(number), self.random.uniform(0.001, 0.01))

    def new_prompt(self) -> list[PageKey]:
        return [self.random.getrandbits(64) for _ in range(PROMPT_PAGES)]

    def cut(self, prompt: list[PageKey]) -> list[PageKey]:
        return prompt[: self.random.randint(0, PROMPT_PAGES)]

    def another_prompt(self) -> tuple[tuple[Prompt], dict[str, Any]]:
        return (Prompt(keys=tuple(self.random.choice(self.prompts)), tokens=PROMPT_TOKENS),), {}

    def decide(self, prompt: Prompt) -> Ranking:
        own = OwnState(load=Load(prefill_tokens_per_s=1000.0, slots=4), ready=True, reuse_tokens=1)
        ranking = rank(
            self.view,
            prompt,
            own,
            policy="cost",
            config=CONFIG.routing,
            now=NOW,
            turn=0,
            draw=0.5,
            rents=self.rents,
        )
        if ranking.tenancy is not None:
            here = ranking.targets[0].is_me
            self.rents.note(ranking.tenancy, served_here=here, residence_s=inf, now=NOW)
        return ranking


def rounds(
    benchmark: BenchmarkFixture,
    function: Callable[..., Any],
    *,
    setup: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]],
    number: int,
) -> Any:
    """Time `function` so often, each time with the arguments that `setup` makes for it."""
    return benchmark.pedantic(function, setup=setup, rounds=number, warmup_rounds=5)  # type: ignore[no-untyped-call]


def test_deciding_among_4_peers_of_20000_pages(benchmark: BenchmarkFixture) -> None:
    swarm = Swarm(peers=4, pages=20_000, prompts=500, holders=1.0, seed=1)
    ranking = rounds(benchmark, swarm.decide, setup=swarm.another_prompt, number=5 * ROUNDS)
    assert len(ranking.targets) == 5


@pytest.mark.parametrize("holders", [0.05, 1.0])
def test_deciding_among_1000_peers_of_2000_pages(benchmark: BenchmarkFixture, holders: float) -> None:
    """Where a prompt is known to one peer in twenty, and where all peers know a part of it."""
    swarm = Swarm(peers=1000, pages=2000, prompts=100, holders=holders, seed=2)
    rounds(benchmark, swarm.decide, setup=swarm.another_prompt, number=ROUNDS)


def test_matching_a_prompt_against_4_peers_of_20000_pages(benchmark: BenchmarkFixture) -> None:
    swarm = Swarm(peers=4, pages=20_000, prompts=500, holders=1.0, seed=3)
    rounds(benchmark, _match(swarm), setup=swarm.another_prompt, number=5 * ROUNDS)


def test_matching_a_prompt_against_1000_peers_of_2000_pages(benchmark: BenchmarkFixture) -> None:
    swarm = Swarm(peers=1000, pages=2000, prompts=100, holders=1.0, seed=4)
    rounds(benchmark, _match(swarm), setup=swarm.another_prompt, number=ROUNDS)


def _match(swarm: Swarm) -> Callable[[Prompt], list[int]]:
    return lambda prompt: swarm.view.match_estimates(prompt.keys)


def test_applying_a_snapshot_of_20000_pages_of_which_a_tenth_changed(benchmark: BenchmarkFixture) -> None:
    """A tenth of the prompts is new and in front, a tenth moved to the front, the least recent are gone."""
    swarm = Swarm(peers=4, pages=20_000, prompts=500, holders=1.0, seed=5)
    versions = count(2)

    def next_snapshot() -> tuple[tuple[Snapshot], dict[str, Any]]:
        keys = swarm.view.estimated_pages(peer_id(0))
        for _ in range(len(keys) // 10 // PROMPT_PAGES):
            start = swarm.random.randrange(len(keys) - PROMPT_PAGES)
            moved = keys[start : start + PROMPT_PAGES]
            del keys[start : start + PROMPT_PAGES]
            keys = swarm.new_prompt() + moved + keys
        return (snapshot(keys[:20_000], version=next(versions), load=Load()),), {}

    def apply(told: Snapshot) -> Applied:
        return swarm.view.apply_snapshot(peer_id(0), told, now=NOW)

    assert rounds(benchmark, apply, setup=next_snapshot, number=100) is Applied.APPLIED


@pytest.mark.parametrize(("peers", "pages"), [(4, 20_000), (1000, 2000)])
def test_memory_of_estimates(benchmark: BenchmarkFixture, peers: int, pages: int) -> None:
    """Time to hear of a swarm; the extra info has the bytes per page where no two peers share any.

    Keys, index and all else that is kept of the peers is counted, and that an allocator rounds a key's 36
    bytes up to 48.
    """

    def hear() -> PeerView:
        return Swarm(peers=peers, pages=pages, prompts=0, holders=0.0, seed=6).view

    tracemalloc.start()
    view = hear()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(view) == peers
    benchmark.extra_info["bytes_per_page"] = round(held / (peers * pages) + 12, 1)
    benchmark.pedantic(hear, rounds=1)  # type: ignore[no-untyped-call]
