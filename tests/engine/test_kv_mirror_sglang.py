"""The tree mirrored from a real SGLang's cache events, against what its cache really does."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest
import trio

from peerinfer.core.types import CacheEvent
from peerinfer.engine.kv_endpoints import KvEndpoints, read_kv_endpoints
from peerinfer.engine.kv_events import KvEventStream
from tests.engine.kv_publisher import PAGE, LossyProxy, Mirror
from tests.real_sglang import RealServer, empty_cache

pytestmark = pytest.mark.sglang
SEED = 20261130
RIGHT_AGAIN_WITHIN_S = 1.0
SLOWER = 10  # than a quiet machine


class Server:
    """A real SGLang, and what it says of its cache."""

    def __init__(self, client: httpx.AsyncClient, endpoints: KvEndpoints) -> None:
        self.endpoints = endpoints
        self._client = client

    async def cached_tokens(self, tokens: Sequence[int], *, count: int = 1, **more: str) -> int:
        """Ask for so many tokens after a prompt; what the server took of it from its cache."""
        body = {"model": "default", "prompt": list(tokens), "max_tokens": count, "temperature": 0}
        answer = await self._client.post("/v1/completions", json=body | {"ignore_eos": True} | more)
        cached: int = answer.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Server]:
    """The server with an empty cache."""
    async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as client:
        info = (await client.get("/server_info")).raise_for_status().json()
        endpoints = read_kv_endpoints(info, host="127.0.0.1")
        assert endpoints is not None
        await empty_cache(client)
        yield Server(client, endpoints)


@asynccontextmanager
async def mirrored(endpoints: KvEndpoints, mirror: Mirror) -> AsyncIterator[KvEventStream]:
    stream = KvEventStream(endpoints, mirror)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        await mirror.until(lambda: mirror.reachable == [True])
        yield stream
        nursery.cancel_scope.cancel()


async def told(mirror: Mirror, tokens: Sequence[int]) -> None:
    """Until it is known that this prompt was stored, and so, since events are in order, all before it."""
    await mirror.until(lambda: mirror.match(tokens) == len(tokens) // PAGE, within_s=60)


class Prompts:
    """Random prompts of which most begin like an earlier one; many more than a pool of 4,096 tokens holds."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._seen: list[list[int]] = []

    def begun_alike(self, number: int) -> list[list[int]]:
        """So many new prompts, half of which share a beginning that nobody has had before."""
        alike = self.fresh(100)
        return [alike + [place] * 20 if place % 2 else self.draw() for place in range(number)]

    def fresh(self, count: int) -> list[int]:
        return [self._rng.randrange(1000, 40_000) for _ in range(count)]

    def draw(self) -> list[int]:
        rng = self._rng
        if self._seen and rng.random() < 0.8:
            base = rng.choice(self._seen[-40:])
            begin = base[: rng.randrange(len(base) + 1)] if rng.random() < 0.6 else base
        else:
            begin = []
        prompt = (begin + self.fresh(rng.choice((0, 1, 7, 16, 40, 150))))[:480]
        prompt = prompt if len(prompt) > 3 else self.fresh(100)
        self._seen.append(prompt)
        return prompt


def predicted(mirror: Mirror, tokens: Sequence[int]) -> int:
    """The cached tokens that the mirror promises; the last token is always computed."""
    return mirror.match(tokens[:-1]) * PAGE


class Watching(Mirror):
    """Keeps what it would have promised for prompts under way, after each event.

    After each message would not do: one tells all of a step, in which a prompt computed in chunks is stored
    up to the end of a chunk, found so by another one, and stored to its end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.under_way: dict[int, tuple[list[int], set[int]]] = {}

    def cache_events(self, events: Sequence[CacheEvent]) -> None:
        for event in events:
            super().cache_events([event])
            for tokens, promised in self.under_way.values():
                promised.add(predicted(self, tokens))


async def test_the_mirror_predicts_every_cached_token_of_an_engine_that_evicts(
    sglang_server: RealServer,
) -> None:
    """Whenever the engine is idle, the mirror equals it.

    Method: 120 prompts, one at a time, each predicted exactly; then 96 in eights, twice as many as there are
    slots. The cached tokens of these may differ from the prediction at their sending by what others stored or
    evicted meanwhile: each must be what the mirror said at some time since.
    """
    print(f"seed {SEED}")
    prompts, mirror = Prompts(SEED), Watching()
    changed = late = 0
    async with serving(sglang_server.url) as server, mirrored(server.endpoints, mirror) as stream:
        assert stream.complete
        for number in range(120):
            tokens = prompts.draw()
            promised = predicted(mirror, tokens)
            count = 40 if number % 50 == 0 else 1
            with stream.watch(tokens) as watch:
                cached = await server.cached_tokens(tokens, count=count)
                assert cached == promised, f"prompt {number}"
                late += not await watch.covered(cached)
            await told(mirror, tokens)

        async def one(number: int, tokens: list[int]) -> None:
            nonlocal changed
            promised = predicted(mirror, tokens)
            mirror.under_way[number] = tokens, {promised}
            cached = await server.cached_tokens(tokens)
            _, seen = mirror.under_way.pop(number)
            assert cached in seen, f"prompt {number}: {cached} is none of {seen}"
            changed += cached != promised

        for number in range(120, 216, 8):
            async with trio.open_nursery() as nursery:
                for place, tokens in enumerate(prompts.begun_alike(8)):
                    nursery.start_soon(one, number + place, tokens)
            last = prompts.fresh(PAGE + 1)
            await server.cached_tokens(last)
            await told(mirror, last)
            tokens = prompts.draw()
            promised = predicted(mirror, tokens)
            assert await server.cached_tokens(tokens) == promised, f"after {number}"
            await told(mirror, tokens)
        evictions = sum(type(event).__name__ == "BlockRemoved" for event in mirror.events)
        print(f"{late} of 120 answers were more than 50 ms before their events; {evictions} evictions")
        print(f"{changed} of 96 concurrent predictions changed under way")
        assert evictions > 20
        assert mirror.sync.unkeyed_blocks == 0
        assert (stream.counts.gaps, stream.counts.rebuilds, mirror.restarts) == (0, 0, 0)


async def test_a_lossy_mirror_of_a_real_engine_is_right_again_within_a_second(
    sglang_server: RealServer,
) -> None:
    """Situation 11. Method: the same events through a proxy that loses 10 %, with replay and without, beside
    a stream that loses none."""
    rng, slowest_s = random.Random(SEED), 0.0
    prompts = Prompts(SEED + 1)
    exact, lossy, bare = Mirror(), Mirror(), Mirror()
    proxy, worse = (LossyProxy(lambda seq: rng.random() < 0.1) for _ in range(2))
    async with (
        serving(sglang_server.url) as server,
        proxy.run(server.endpoints) as lossy_endpoints,
        worse.run(KvEndpoints(live=server.endpoints.live, sglang_names=True)) as bare_endpoints,
        mirrored(server.endpoints, exact),
        mirrored(lossy_endpoints, lossy) as repaired,
        mirrored(bare_endpoints, bare) as rebuilt,
    ):
        for number in range(80):
            tokens = prompts.draw()
            with rebuilt.watch(tokens) as watch:
                await watch.covered(await server.cached_tokens(tokens), within_s=0.05)
            if number % 8 == 7:
                await told(exact, tokens)
                truth, since = set(exact.sync.tree.ordered_keys()), trio.current_time()
                await lossy.until(lambda truth=truth: set(lossy.sync.tree.ordered_keys()) == truth)
                slowest_s = max(slowest_s, trio.current_time() - since)
        print(f"right again after {slowest_s:.2f} s at most")
        assert slowest_s < SLOWER * RIGHT_AGAIN_WITHIN_S
        assert proxy.lost > 0
        assert repaired.counts.replayed >= proxy.lost
        assert (repaired.counts.rebuilds, repaired.complete) == (0, True)
        assert rebuilt.counts.rebuilds == rebuilt.counts.gaps
        print(
            f"lost {proxy.lost} and {worse.lost}; without replay {len(bare.sync.tree)} of {len(truth)} pages"
        )


async def test_what_an_extra_key_or_a_salt_sets_apart_is_no_page(sglang_server: RealServer) -> None:
    """SGLang keeps their blocks from all other prompts, and so does the mirror."""
    plain, apart = [1001] * 100, [1002] * 100
    mirror = Mirror()
    async with serving(sglang_server.url) as server, mirrored(server.endpoints, mirror) as stream:
        await server.cached_tokens(plain)
        await told(mirror, plain)
        before = stream.counts.left_out
        for more in ({"extra_key": "mine"}, {"cache_salt": "mine"}):
            assert await server.cached_tokens(apart, **more) == 0
            assert await server.cached_tokens(apart, **more) == 96
        await server.cached_tokens([*plain, *plain])
        await told(mirror, [*plain, *plain])
        assert predicted(mirror, apart) == await server.cached_tokens(apart) == 0
        await told(mirror, apart)
        assert predicted(mirror, apart) == await server.cached_tokens(apart) == 96
        assert stream.counts.left_out - before == 2 * 6
