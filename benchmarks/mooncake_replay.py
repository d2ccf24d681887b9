"""Mooncake's traces against eight nodes: what fresher load is worth. The core decides, without trio.

Open loop, by the traces' own clock, in blocks of 512 tokens. A node prefills one prompt after the other, and
matches each with its cache when its turn comes; trees are fresh, loads are as old as gossip makes them.
`central` is SGLang's cache_aware rule with exact load: the longest match if it covers more than half, else
the fewest requests, and those as soon as nodes differ by too many. `cost, exact load` decides as the nodes
do, but knows every load at the moment of the decision, with all that is on its way.

    python -m benchmarks.mooncake_replay --data DIR [--requests N]
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.oracle_view import OracleView, number_of
from peerinfer.config import Config, RoutingConfig
from peerinfer.core.asking import wait_at_most_s, worth_asking
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.rent import RentLedger
from peerinfer.core.router import OwnState, Prompt, Ranking, rank
from peerinfer.core.types import Given, Load, PageKey
from peerinfer.engine.recent_count import RecentCount

NODES, BLOCK, CACHE_BLOCKS = 8, 512, 3000
RATE = 12_000.0
ONE_WAY_S, GOSSIP_S = 0.002, 0.5
PROMPT_TOKENS_MAX = 32_000
HALF_LIFE_S = 30.0
IMBALANCE, IMBALANCE_TIMES = 64, 1.5  # sglang-router's defaults
IDLE = Load(prefill_tokens_per_s=RATE, slots=10**6)
EXACT = "cost, exact load"
COST = RoutingConfig()
MODES = {
    "no routing": replace(COST, policy="local"),
    "central": COST,
    "cost, gossip alone": replace(COST, ask_peers_max=0, slower_max=0),
    "cost, last word": replace(COST, ask_peers_max=0),
    "cost": COST,
    EXACT: replace(COST, ask_peers_max=0, slower_max=0),
}
Event = Callable[[float], None]


@dataclass(slots=True)
class Work:
    """A prompt at an engine."""

    prompt: Prompt
    done: Event
    """Its first token is there."""

    @property
    def tokens(self) -> int:
        """Of the prompt."""
        return self.prompt.tokens or 0


class Engine:
    """A node's queue and cache."""

    def __init__(self, at: Callable[[float, Event], None]) -> None:
        self.tree = RadixTree(capacity_pages=CACHE_BLOCKS)
        self.cached = self.tokens = 0
        self._at = at
        self._queue: deque[Work] = deque()
        self._busy_until = 0.0
        self._at_work: Work | None = None
        self._recent = RecentCount(HALF_LIFE_S)

    @property
    def requests(self) -> int:
        """That wait or are in prefill."""
        return len(self._queue) + (self._at_work is not None)

    def submit(self, now: float, work: Work) -> None:
        """Take a prompt."""
        self._queue.append(work)
        if self._at_work is None:
            self._next(now)

    def load(self, now: float) -> Load:
        """As a node tells it; pages that an earlier prompt will have computed count once."""
        left = max(0.0, self._busy_until - now) * RATE
        ahead: set[PageKey] = set(self._at_work.prompt.keys) if self._at_work else set()
        for work in self._queue:
            keys = work.prompt.keys
            pages = self.tree.match_prefix(keys)
            while pages < len(keys) and keys[pages] in ahead:
                pages += 1
            left += work.tokens - _reusable(pages, work.tokens)
            ahead.update(keys[pages:])
        recent = round(self._recent.at(now))
        return replace(IDLE, queued_prefill_tokens=round(left), recent_prefill_tokens=recent)

    def _next(self, now: float) -> None:
        work = self._queue.popleft()
        cached = _reusable(self.tree.match_prefix(work.prompt.keys), work.tokens)
        self.tree.touch(work.prompt.keys, now=now)
        self.cached += cached
        self.tokens += work.tokens
        self._at_work = work
        self._busy_until = now + (work.tokens - cached) / RATE

        def done(then: float) -> None:
            self._at_work = None
            self._recent.add(work.tokens - cached, now=then)
            self.tree.insert(work.prompt.keys, now=then)
            if self._queue:
                self._next(then)
            work.done(then)

        self._at(self._busy_until, done)


def _reusable(pages: int, tokens: int) -> int:
    return min(pages * BLOCK, (tokens - 1) // BLOCK * BLOCK)


class Replay:
    """One trace under one mode."""

    def __init__(self, mode: str) -> None:
        self.mode, self.routing = mode, MODES[mode]
        self.events: list[tuple[float, int, Event]] = []
        self.numbers = count()
        self.engines = [Engine(self.at) for _ in range(NODES)]
        trees, config = [engine.tree for engine in self.engines], Config(routing=self.routing)
        self.views = [
            OracleView(
                me=number, trees=trees, page_size=BLOCK, config=config, round_trip_s=2 * ONE_WAY_S, load=IDLE
            )
            for number in range(NODES)
        ]
        self.rents = [RentLedger(self.routing) for _ in range(NODES)]
        self.coming: Counter[int] = Counter()
        """Uncached tokens on their way to each node, for the mode that knows it."""
        self.given: defaultdict[tuple[int, int], Given] = defaultdict(Given)
        """What is not over of what an entry node has given to another one, as that one counts it."""
        self.ttft_s: list[float] = []
        self.refused = self.asked = 0
        self.last_s = 0.0

    @property
    def hit(self) -> float:
        """Of all prompt tokens, those that were cached."""
        cached = sum(engine.cached for engine in self.engines)
        return cached / sum(engine.tokens for engine in self.engines)

    def at(self, when: float, event: Event) -> None:
        """Have something happen."""
        heapq.heappush(self.events, (when, next(self.numbers), event))

    def run(self, lines: Sequence[str]) -> None:
        """Replay a trace."""
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
        """Every node tells all others its load, now and after each interval."""
        for number, engine in enumerate(self.engines):
            self.tell(number, engine.load(now), now)
        if now < self.last_s:
            self.at(now + GOSSIP_S, self.gossip)

    def tell(self, number: int, load: Load, now: float) -> None:
        """A node tells all others its load."""

        def heard(then: float) -> None:
            for other in range(NODES):
                if other != number:
                    self.views[other].hear(number, load, now=then)

        self.at(now + ONE_WAY_S, heard)

    def reply(self, now: float, number: int, entry: int, before: Event | None = None) -> None:
        """A node tells another one its load, and how much of what that one has given the load counts."""
        load, yours = self.engines[number].load(now), self.given[entry, number]

        def heard(then: float) -> None:
            if before is not None:
                before(then)
            self.views[entry].hear(number, load, now=then, yours=yours)

        self.at(now + ONE_WAY_S, heard)

    def arrive(self, now: float, entry: int, prompt: Prompt) -> None:
        """A client asks a node."""
        if self.mode == "no routing":
            self.serve(now, entry, prompt, begun=now)
        elif self.mode == "central":
            self.serve(now, self.central(prompt), prompt, begun=now)
        elif self.mode == EXACT:
            for number in range(NODES):
                if number != entry:
                    self.views[entry].hear(number, self.load(now, number), now=now)
            self.send(now, entry, prompt, begun=now, refused=0)
        else:
            self.decide(now, entry, prompt, begun=now, refused=0)

    def central(self, prompt: Prompt) -> int:
        """Where SGLang's rule sends a prompt."""
        loads = [engine.requests for engine in self.engines]
        idlest = loads.index(min(loads))
        if max(loads) - min(loads) > IMBALANCE and max(loads) > IMBALANCE_TIMES * min(loads):
            return idlest
        matches = [engine.tree.match_prefix(prompt.keys) for engine in self.engines]
        best = matches.index(max(matches))
        return best if 2 * matches[best] > len(prompt.keys) else idlest

    def load(self, now: float, number: int) -> Load:
        """Of a node; `coming` is empty but in the mode that knows it."""
        load = self.engines[number].load(now)
        return replace(load, queued_prefill_tokens=load.queued_prefill_tokens + self.coming[number])

    def rank(self, now: float, entry: int, prompt: Prompt) -> Ranking:
        """A node's decision."""
        return rank(
            self.views[entry],
            prompt,
            OwnState(load=self.load(now, entry), ready=True, reuse_tokens=1),
            policy="cost",
            config=self.routing,
            now=now,
            turn=0,
            draw=0.5,
            rents=self.rents[entry],
        )

    def decide(self, now: float, entry: int, prompt: Prompt, *, begun: float, refused: int) -> None:
        """Ask the best, where that is worth a round trip."""
        targets = self.rank(now, entry, prompt).targets
        peers = worth_asking(targets, self.routing, prompt_tokens=prompt.tokens or 0, was_refused=refused > 0)
        self.asked += len(peers)
        for peer in peers:
            number = number_of(peer)
            self.at(now + ONE_WAY_S, lambda t, n=number: self.reply(t, n, entry))  # type: ignore[misc]
        wait_s = 2 * ONE_WAY_S if peers else 0.0
        self.at(now + wait_s, lambda t: self.send(t, entry, prompt, begun=begun, refused=refused))

    def send(self, now: float, entry: int, prompt: Prompt, *, begun: float, refused: int) -> None:
        """Serve here, or forward; a peer that turns out slower than the next best refuses."""
        ranking, view = self.rank(now, entry, prompt), self.views[entry]
        best = ranking.targets[0]
        if not refused:
            view.crowding.note(busy_share=ranking.busy_share, prefill_s=best.prefill_s)
        if ranking.tenancy is not None:
            residence_s = self.engines[entry].tree.evictions.residence_s
            self.rents[entry].note(ranking.tenancy, served_here=best.is_me, residence_s=residence_s, now=now)
        if best.is_me:
            self.serve(now, entry, prompt, begun=begun)
            return
        number, expected = number_of(best.peer), best.expected_cached_tokens + best.in_flight_tokens
        given, keys = Given(1, len(prompt.keys) * BLOCK - expected), prompt.keys
        limit_s = wait_at_most_s(best, ranking.targets) if refused < self.routing.slower_max else None
        view.forwarded(best.peer, given.tokens, keys)
        if self.mode == EXACT:
            view.settled(best.peer, given.tokens)  # the loads that are heard count it
            self.coming[number] += given.tokens

        def ended(_: float, *, was_settled: bool = True) -> None:
            view.ended(best.peer, given.tokens, keys, was_settled=was_settled)

        def come(then: float) -> None:
            if self.mode == EXACT:
                self.coming[number] -= given.tokens
                self.serve(then, number, prompt, begun=begun, back_s=ONE_WAY_S, answered=ended)
                return
            slower = (
                limit_s is not None and self.engines[number].load(then).queued_prefill_tokens / RATE > limit_s
            )
            if slower:
                self.refused += 1
                self.reply(then, number, entry, partial(ended, was_settled=False))
                again = refused + 1
                self.at(then + ONE_WAY_S, lambda t: self.decide(t, entry, prompt, begun=begun, refused=again))
                return
            self.given[entry, number] = self.given[entry, number].plus(given)
            self.serve(then, number, prompt, begun=begun, back_s=ONE_WAY_S, answered=answered)
            self.reply(then, number, entry)

        def answered(then: float) -> None:
            self.given[entry, number] = self.given[entry, number].minus(given)
            self.reply(then, number, entry, ended)

        self.at(now + ONE_WAY_S, come)

    def serve(
        self,
        now: float,
        number: int,
        prompt: Prompt,
        *,
        begun: float,
        back_s: float = 0.0,
        answered: Event | None = None,
    ) -> None:
        """Have an engine do it; the first token takes `back_s`."""
        engine, view, keys = self.engines[number], self.views[number], prompt.keys
        coming = view.own_in_flight.match_prefix(keys, engine.tree.match_prefix(keys))
        tokens = prompt.tokens or 0
        uncached = tokens - _reusable(coming, tokens)

        def done(then: float) -> None:
            view.ended(view.me, uncached, keys, was_settled=True)
            self.ttft_s.append(then + back_s - begun)
            if answered is not None:
                answered(then)

        view.forwarded(view.me, uncached, keys)
        view.settled(view.me, uncached)  # the engine's load counts it from here on
        engine.submit(now, Work(prompt, done))


def row(trace: str, mode: str, lines: Sequence[str]) -> str:
    """A line of the table."""
    replay = Replay(mode)
    replay.run(lines)
    times, size = sorted(replay.ttft_s), len(replay.ttft_s)
    return (
        f"| {trace} | {mode} | {sum(times) / size:.3f} | {times[int(0.99 * size)]:.2f} "
        f"| {replay.hit:.3f} | {replay.asked / size:.2f} | {replay.refused / size:.2f} |"
    )


def main() -> None:
    """Print a row per trace and mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--requests", type=int)
    options = parser.parse_args()
    print("| trace | mode | mean TTFT, s | p99 | hit | asked | refused |\n|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(2) as pool:
        rows = []
        for trace in ("conversation", "synthetic"):
            lines = (options.data / "mooncake" / f"{trace}.jsonl").read_text().splitlines()
            rows += [pool.submit(row, trace, mode, lines[: options.requests]) for mode in MODES]
        for each in rows:
            print(each.result(), flush=True)


if __name__ == "__main__":
    main()
