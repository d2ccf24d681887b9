"""Mooncake's traces against eight nodes: what fresher load is worth. The core decides, without trio.

Open loop, by the traces' own clock, in blocks of 512 tokens. A node prefills one prompt after the other;
trees are fresh, loads are as old as gossip makes them. `central` is SGLang's cache_aware rule with exact
load: the longest match if it covers more than half, else the fewest requests, and those as soon as nodes
differ by too many.

    python benchmarks/mooncake_replay.py --data DIR [--requests N]
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from pathlib import Path

from peerinfer.config import Config, RoutingConfig
from peerinfer.core.asking import wait_at_most_s, worth_asking
from peerinfer.core.peer_view import PeerView
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.rent import RentLedger
from peerinfer.core.router import OwnState, Prompt, Ranking, rank
from peerinfer.core.snapshot import Snapshot
from peerinfer.core.types import Load, NodeState, PageKey, PeerId

NODES, BLOCK, CACHE_BLOCKS = 8, 512, 3000
RATE = 12_000.0
ONE_WAY_S, GOSSIP_S = 0.002, 0.5
PROMPT_TOKENS_MAX = 32_000
HALF_LIFE_S = 30.0
IMBALANCE, IMBALANCE_TIMES = 64, 1.5  # sglang-router's defaults
COST = RoutingConfig()
MODES = {
    "no routing": replace(COST, policy="local"),
    "central": COST,
    "cost, gossip alone": replace(COST, ask_peers_max=0, slower_max=0),
    "cost, last word": replace(COST, ask_peers_max=0),
    "cost": COST,
}


class Engine:
    """A node's queue and cache."""

    def __init__(self) -> None:
        self.tree = RadixTree(capacity_pages=CACHE_BLOCKS)
        self.free_at = 0.0
        self.ends: deque[float] = deque()
        self.recent = (0.0, 0.0)

    def requests(self, now: float) -> int:
        while self.ends and self.ends[0] <= now:
            self.ends.popleft()
        return len(self.ends)

    def load(self, now: float) -> Load:
        tokens, at = self.recent
        return Load(
            queued_prefill_tokens=round(max(0.0, self.free_at - now) * RATE),
            recent_prefill_tokens=round(tokens * 2.0 ** ((at - now) / HALF_LIFE_S)),
            prefill_tokens_per_s=RATE,
            slots=10**6,
        )


class View(PeerView):
    """Fresh trees, and loads as they are told."""

    def __init__(self, me: int, engines: Sequence[Engine], config: Config) -> None:
        super().__init__(me=_name(me), own=engines[me].tree, page_size=BLOCK, config=config)
        self._others = [each.tree for number, each in enumerate(engines) if number != me]
        for number in range(NODES):
            if number != me:
                self.apply_snapshot(_name(number), _BEAT, now=0.0)
                self.observe_round_trip(_name(number), 2 * ONE_WAY_S)
                self._peers[_name(number)].detector.suspect_at = inf

    def match_estimates(self, keys: Sequence[PageKey]) -> list[int]:
        return [tree.match_prefix(keys) for tree in self._others]

    def hear(self, number: int, load: Load, now: float) -> None:
        self.observe_load(_name(number), load, incarnation=1, seq=0, now=now)
        self._peers[_name(number)].detector.suspect_at = inf


_BEAT = Snapshot(
    addrs=(),
    incarnation=1,
    seq=0,
    tree_version=0,
    next_within_s=1.0,
    load=Load(prefill_tokens_per_s=RATE, slots=10**6),
    paused_for_s=0.0,
    state=NodeState.ALIVE,
    reuse_tokens=1,
    keys=None,
    cut=False,
    pages=0,
)


def _name(number: int) -> PeerId:
    return PeerId(f"node-{number}")


class Replay:
    """One trace under one mode."""

    def __init__(self, mode: str) -> None:
        self.mode, self.routing = mode, MODES[mode]
        self.engines = [Engine() for _ in range(NODES)]
        config = Config(routing=self.routing)
        self.views = [View(number, self.engines, config) for number in range(NODES)]
        self.rents = [RentLedger(self.routing) for _ in range(NODES)]
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.numbers = count()
        self.ttft_s: list[float] = []
        self.cached = self.tokens = self.refused = self.asked = 0
        self.last_s = 0.0

    def at(self, when: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), event))

    def run(self, lines: Sequence[str]) -> None:
        for number, line in enumerate(lines):
            asked = json.loads(line)
            length = min(asked["input_length"], PROMPT_TOKENS_MAX)
            prompt = Prompt(keys=tuple(asked["hash_ids"][: length // BLOCK]), tokens=length)
            self.last_s = 1.0 + asked["timestamp"] / 1000.0
            self.at(self.last_s, lambda now, e=number % NODES, p=prompt: self.arrive(now, e, p))  # type: ignore[misc]
        self.at(0.0, self.gossip)
        while self.events:
            now, _, event = heapq.heappop(self.events)
            event(now)

    def gossip(self, now: float) -> None:
        for number, engine in enumerate(self.engines):
            self.tell(number, engine.load(now), now)
        if now < self.last_s:
            self.at(now + GOSSIP_S, self.gossip)

    def tell(self, number: int, load: Load, now: float, to: Sequence[int] = range(NODES)) -> None:
        def heard(then: float) -> None:
            for other in to:
                if other != number:
                    self.views[other].hear(number, load, then)

        self.at(now + ONE_WAY_S, heard)

    def arrive(self, now: float, entry: int, prompt: Prompt) -> None:
        if self.mode == "no routing":
            self.ttft_s.append(self.serve(now, entry, prompt) - now)
        elif self.mode == "central":
            self.ttft_s.append(self.serve(now, self.central(now, prompt), prompt) - now)
        else:
            self.decide(now, entry, prompt, begun=now, refused=0)

    def central(self, now: float, prompt: Prompt) -> int:
        loads = [engine.requests(now) for engine in self.engines]
        idlest = loads.index(min(loads))
        if max(loads) - min(loads) > IMBALANCE and max(loads) > IMBALANCE_TIMES * min(loads):
            return idlest
        matches = [engine.tree.match_prefix(prompt.keys) for engine in self.engines]
        best = matches.index(max(matches))
        return best if 2 * matches[best] > len(prompt.keys) else idlest

    def rank(self, now: float, entry: int, prompt: Prompt) -> Ranking:
        return rank(
            self.views[entry],
            prompt,
            OwnState(load=self.engines[entry].load(now), ready=True, reuse_tokens=1),
            policy="cost",
            config=self.routing,
            now=now,
            turn=0,
            draw=0.5,
            rents=self.rents[entry],
        )

    def decide(self, now: float, entry: int, prompt: Prompt, *, begun: float, refused: int) -> None:
        targets = self.rank(now, entry, prompt).targets
        peers = worth_asking(targets, self.routing, was_refused=refused > 0)
        self.asked += len(peers)
        for peer in peers:
            number = int(peer[5:])
            self.at(now + ONE_WAY_S, lambda t, n=number: self.tell(n, self.engines[n].load(t), t, [entry]))  # type: ignore[misc]
        wait_s = 2 * ONE_WAY_S if peers else 0.0
        self.at(now + wait_s, lambda t: self.send(t, entry, prompt, begun=begun, refused=refused))

    def send(self, now: float, entry: int, prompt: Prompt, *, begun: float, refused: int) -> None:
        ranking, view = self.rank(now, entry, prompt), self.views[entry]
        best = ranking.targets[0]
        if ranking.tenancy is not None:
            residence_s = self.engines[entry].tree.evictions.residence_s
            self.rents[entry].note(ranking.tenancy, served_here=best.is_me, residence_s=residence_s, now=now)
        if best.is_me:
            self.ttft_s.append(self.serve(now, entry, prompt) - begun)
            return
        number, tokens = int(best.peer[5:]), (prompt.tokens or 0) - best.expected_cached_tokens
        limit_s = wait_at_most_s(best, ranking.targets) if refused < self.routing.slower_max else None
        view.forwarded(best.peer, tokens)

        def settle(_: float) -> None:
            view.settled(best.peer, tokens)

        def come(then: float) -> None:
            engine = self.engines[number]
            slower = limit_s is not None and engine.free_at - then > limit_s
            end = 0.0 if slower else self.serve(then, number, prompt)
            self.tell(number, engine.load(then), then, [entry])
            self.at(then + ONE_WAY_S, settle)
            if slower:
                self.refused += 1
                again = refused + 1
                self.at(then + ONE_WAY_S, lambda t: self.decide(t, entry, prompt, begun=begun, refused=again))
            else:
                self.ttft_s.append(end + ONE_WAY_S - begun)
                self.at(end, lambda t: self.tell(number, engine.load(t), t, [entry]))

        self.at(now + ONE_WAY_S, come)

    def serve(self, now: float, number: int, prompt: Prompt) -> float:
        engine, tokens = self.engines[number], prompt.tokens or 0
        cached = min(engine.tree.match_prefix(prompt.keys) * BLOCK, (tokens - 1) // BLOCK * BLOCK)
        engine.recent = (engine.load(now).recent_prefill_tokens + tokens - cached, now)
        engine.free_at = max(now, engine.free_at) + (tokens - cached) / RATE
        engine.ends.append(engine.free_at)
        self.cached += cached
        self.tokens += tokens
        self.at(engine.free_at, lambda then: engine.tree.insert(prompt.keys, now=then))
        return engine.free_at


def main() -> None:
    """Print a row per trace and mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--requests", type=int)
    options = parser.parse_args()
    print("| trace | mode | mean TTFT, s | p99 | hit | asked | refused |\n|---|---|---|---|---|---|---|")
    for trace in ("conversation", "synthetic"):
        lines = (options.data / "mooncake" / f"{trace}.jsonl").read_text().splitlines()[: options.requests]
        for mode in MODES:
            replay = Replay(mode)
            replay.run(lines)
            times, size = sorted(replay.ttft_s), len(replay.ttft_s)
            print(
                f"| {trace} | {mode} | {sum(times) / size:.3f} | {times[int(0.99 * size)]:.2f} "
                f"| {replay.cached / replay.tokens:.3f} | {replay.asked / size:.2f} "
                f"| {replay.refused / size:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
