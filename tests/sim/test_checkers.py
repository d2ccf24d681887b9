"""Each checker finds the bug that it is for: one of each kind is planted into production code.

Method: a small world in which three nodes serve each other, without the bug (nothing is wrong) and with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio

from peerinfer.config import AntiEntropyConfig, Config
from peerinfer.core import failure_detector, peer_view
from peerinfer.core.frames import Ask, Request
from peerinfer.core.snapshot import Snapshot
from peerinfer.core.types import CacheEvent, Chunk, End
from peerinfer.engine import job
from peerinfer.node import cache_sync, node, request
from peerinfer.node.context import Context
from peerinfer.node.ports import Call
from peerinfer.sim import shared_reading
from peerinfer.sim.checkers import Checkers
from peerinfer.sim.runtime import run_virtual
from peerinfer.sim.world import Conditions, NodeSpec, World, WorldSpec

DEADLINE_S = 30.0


def live() -> list[str]:
    """What is wrong with a world in which each of three nodes serves and forwards."""

    async def main() -> list[str]:
        checkers = Checkers()
        config = Config(anti_entropy=AntiEntropyConfig(idle_interval_s=0.5))
        spec = WorldSpec(
            nodes=(NodeSpec(cache_pages=40, prefill_tokens_per_s=5000, decode_tokens_per_s=200),) * 3,
            conditions=Conditions(delay_s=0.005),
            config=replace(config, request=replace(config.request, deadline_s=DEADLINE_S)),
        )
        async with World(spec, checkers=checkers) as world:
            await world.settle()
            async with trio.open_nursery() as nursery:
                for turn in range(6):
                    nursery.start_soon(ask, world, turn)
                    await trio.sleep(0.3)
                await trio.sleep(2 * DEADLINE_S)
                checkers.check_over()
                nursery.cancel_scope.cancel()
            checkers.check_quiet(world.nodes)
        return checkers.found

    return run_virtual(main, seed=1)


async def ask(world: World, turn: int) -> None:
    prompt = [1000 * (turn % 2) + place for place in range(100)]
    await world.request(entry=turn % 3, target=(turn + 1) % 3, tokens=prompt, max_tokens=6)


def test_a_world_without_a_bug_has_no_violations() -> None:
    assert live() == []


def test_a_token_that_comes_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    show = job.Job._show

    def show_twice(self: job.Job, released: Any) -> None:
        show(self, released)
        if self.generated == 3:
            show(self, released)

    monkeypatch.setattr(job.Job, "_show", show_twice)
    assert "instead of" in live()[0]


def test_a_token_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    show = job.Job._show

    def show_most(self: job.Job, released: Any) -> None:
        if self.generated != 3:
            show(self, released)

    monkeypatch.setattr(job.Job, "_show", show_most)
    assert "instead of" in live()[0]


def test_an_answer_without_an_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_of = request.answer_of

    async def endless(*args: Any) -> AsyncIterator[Chunk | End]:
        async for item in answer_of(*args):
            if isinstance(item, Chunk):
                yield item

    monkeypatch.setattr(request, "answer_of", endless)
    assert "has 0 results" in live()[0]


def test_a_request_that_is_never_answered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drop(node: Context, r: Any) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(request, "read_prompt", drop)
    assert "has no result" in live()[0]


def test_a_forward_of_a_forward_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug: whoever is asked asks the next node, and relays its answer."""
    serve_call = node.serve_call

    async def relay(me: Context, call: Call, opening: Request | Ask) -> None:
        others = sorted(peer for peer in me.overlay.links() if peer > me.me)
        if isinstance(opening, Ask) or not others:
            await serve_call(me, call, opening)
            return
        async with me.overlay.open_call(others[0]) as further:
            await further.send(opening)
            while True:
                frame = await further.receive()
                await call.send(frame)
                if type(frame).__name__ in ("EndFrame", "Refuse", "ErrorFrame"):
                    return

    monkeypatch.setattr(node, "serve_call", relay)
    assert "but its client is at" in live()[0]


def test_an_estimate_that_no_past_tree_explains_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug: a receiver takes one page for another."""
    decode = shared_reading.decode_snapshot

    def garble(payload: bytes, *, bytes_max: int) -> Snapshot:
        snapshot = decode(payload, bytes_max=bytes_max)
        keys = snapshot.keys and (snapshot.keys[0] ^ 1, *snapshot.keys[1:])
        return replace(snapshot, keys=keys)

    monkeypatch.setattr(shared_reading, "decode_snapshot", garble)
    assert "no past tree" in live()[0]


def test_a_tree_that_is_not_the_cache_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = cache_sync.CacheSync.apply

    def forget(self: cache_sync.CacheSync, events: Sequence[CacheEvent], *, now: float) -> None:
        apply(self, events[:-1] if now > 1 else events, now=now)

    monkeypatch.setattr(cache_sync.CacheSync, "apply", forget)
    assert "its engine" in live()[0]


def test_an_old_tree_that_is_believed_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug: a tree that is held already is never replaced, so nothing converges."""
    index = peer_view.EstimateIndex
    replaced = index.replace

    def replace_once(self: Any, estimate: Any, keys: Sequence[int]) -> None:
        replaced(self, estimate, keys if not len(estimate.pages) else tuple(estimate.pages))

    monkeypatch.setattr(index, "replace", replace_once)
    assert live()


def test_a_peer_that_is_suspected_while_it_is_heard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug: what a peer promises is taken for its patience, a third of it."""
    count_from = failure_detector.FailureDetector._count_from

    def hurry(self: failure_detector.FailureDetector, start: float) -> None:
        count_from(self, start)
        self.suspect_at = start + 0.9 * self.next_within_s

    monkeypatch.setattr(failure_detector.FailureDetector, "_count_from", hurry)
    assert "suspects" in live()[0]
