"""The stream of cache events over real ZeroMQ: losses, late joins, restarts, connections that break."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from peerinfer.engine.kv_endpoints import KvEndpoints
from peerinfer.engine.kv_event_codec import sglang_block_hashes
from peerinfer.engine.kv_events import KvEventStream
from tests.engine.kv_publisher import (
    CLEARED,
    PAGE,
    LossyProxy,
    Mirror,
    ModelCache,
    open_publisher,
    prompt,
    removed,
    stored,
    stored_prompt,
)

RIGHT_AGAIN_WITHIN_S = 1.0


@asynccontextmanager
async def follow(
    endpoints: KvEndpoints, mirror: Mirror, *, poll_interval_s: float = 0.05
) -> AsyncIterator[KvEventStream]:
    """Run a stream once it says that it follows."""
    stream = KvEventStream(
        endpoints, mirror, poll_interval_s=poll_interval_s, replay_timeout_s=5.0, lost_after_s=5.0
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        await mirror.until(lambda: mirror.reachable[-1:] == [True])
        yield stream
        nursery.cancel_scope.cancel()


async def test_events_are_told_as_they_come() -> None:
    mirror = Mirror()
    async with open_publisher() as (publisher, endpoints), follow(endpoints, mirror) as stream:
        publisher.publish(stored_prompt(prompt(1, 3)))
        publisher.publish(stored_prompt(prompt(1, 5), first=3), stored_prompt(prompt(2, 1)))
        await mirror.until(lambda: len(mirror.sync.tree) == 6)
        assert stream.complete
        publisher.publish(removed(sglang_block_hashes(prompt(1, 5), PAGE)[4:]))
        await mirror.until(lambda: mirror.match(prompt(1, 5)) == 4)
        publisher.publish(CLEARED)
        await mirror.until(lambda: len(mirror.sync.tree) == 0)
        assert (stream.counts.gaps, stream.counts.rebuilds, mirror.restarts) == (0, 0, 0)


@pytest.mark.parametrize("names_topic", [True, False], ids=["SGLang", "vLLM"])
async def test_a_late_stream_gets_what_is_kept(names_topic: bool) -> None:
    """The whole history makes the tree complete. The two servers' replies differ in shape."""
    mirror = Mirror()
    async with open_publisher(names_topic=names_topic) as (publisher, endpoints):
        for number in range(3000):
            publisher.publish(stored_prompt(prompt(number, 2)))
        async with follow(endpoints, mirror) as stream:
            assert len(mirror.sync.tree) == 6000
            assert stream.complete


async def test_a_late_stream_claims_only_what_it_can_know() -> None:
    """Method: the messages before the last two are not kept; the last continues a prompt that they began."""
    mirror = Mirror()
    async with open_publisher(keeps=2) as (publisher, endpoints):
        publisher.publish(stored_prompt(prompt(1, 3)))
        publisher.publish(stored_prompt(prompt(2, 3)))
        publisher.publish(stored_prompt(prompt(1, 5), first=3))
        async with follow(endpoints, mirror) as stream:
            assert (mirror.match(prompt(1, 5)), mirror.match(prompt(2, 3))) == (0, 3)
            assert not stream.complete
            publisher.publish(CLEARED)
            await mirror.until(lambda: len(mirror.sync.tree) == 0)
            assert stream.complete, "an empty cache is known completely"


@pytest.mark.parametrize("seed", range(3))
async def test_what_a_proxy_loses_is_replayed_within_a_second(seed: int) -> None:
    """Situation 11. Method: 10 % of the messages are lost; after every burst, which often ends with a loss,
    the tree equals the engine's cache again, and has never been given up."""
    rng = random.Random(seed)
    cache, mirror = ModelCache(rng), Mirror()
    proxy = LossyProxy(lambda seq: rng.random() < 0.1)
    async with open_publisher() as (publisher, endpoints), proxy.run(endpoints) as lossy:
        async with follow(lossy, mirror, poll_interval_s=0.5) as stream:
            for _ in range(4):
                for _ in range(100):
                    publisher.publish(*cache.step())
                await mirror.until(lambda: mirror.holds_exactly(cache), within_s=5 * RIGHT_AGAIN_WITHIN_S)
            assert stream.complete
        assert proxy.lost > 20, f"seed {seed}"
        assert stream.counts.replayed >= proxy.lost
        assert (stream.counts.rebuilds, mirror.restarts) == (0, 0)
        assert mirror.sync.unkeyed_blocks == 0


async def test_a_lost_last_message_is_made_good_without_another() -> None:
    mirror = Mirror()
    async with open_publisher() as (publisher, endpoints), follow(endpoints, mirror) as stream:
        publisher.publish(stored_prompt(prompt(1, 2)))
        await mirror.until(lambda: mirror.match(prompt(1, 2)) == 2)
        publisher.keep_events(removed(sglang_block_hashes(prompt(1, 2), PAGE)))
        await mirror.until(lambda: mirror.match(prompt(1, 2)) == 0)
        assert (stream.counts.replayed, stream.counts.gaps) == (1, 0)


@pytest.mark.parametrize("seed", range(3))
async def test_without_replay_a_loss_empties_the_tree_and_it_is_learned_anew(seed: int) -> None:
    """Situation 11: after a gap the tree claims only what was told since. Method: as above, nothing kept;
    each burst ends with a prompt that is not lost, so that a loss before it is seen."""
    rng = random.Random(seed)
    cache, mirror = ModelCache(rng), Mirror()
    proxy = LossyProxy(lambda seq: rng.random() < 0.1)
    async with (
        open_publisher(replay=False) as (publisher, endpoints),
        proxy.run(endpoints) as lossy,
        follow(lossy, mirror) as stream,
    ):
        await publisher.subscribed()
        await proxy.subscribed()
        for number in range(1, 5):
            for _ in range(50):
                publisher.publish(*cache.step())
            last = publisher.sent
            proxy.loses = lambda seq, last=last: seq != last and rng.random() < 0.1
            publisher.publish(*cache.store(prompt(number, 2)))
            await mirror.until(lambda number=number: mirror.match(prompt(number, 2)) == 2)
            assert set(mirror.sync.tree.ordered_keys()) <= mirror.keys(cache), f"seed {seed}"
        assert stream.counts.gaps == stream.counts.rebuilds > 0
        assert not stream.complete


async def test_a_replay_that_loses_messages_itself_is_asked_for_the_rest() -> None:
    """And what never comes is given up: what follows it is learned anew."""
    mirror = Mirror()
    async with open_publisher() as (publisher, endpoints):
        for number in range(20):
            publisher.publish(stored_prompt(prompt(number, 1)))
        publisher.lost_in_replay = {7, 8}
        async with follow(endpoints, mirror) as stream:
            assert (len(mirror.sync.tree), publisher.replays) == (20, 2)
            for seq in range(20, 25):
                publisher.keep_events(stored_prompt(prompt(seq, 1)))
            publisher.never_replayed = {22}
            await mirror.until(lambda: mirror.match(prompt(24, 1)) == 1)
            assert len(mirror.sync.tree) == 2
            assert (stream.complete, stream.counts.rebuilds) == (False, 1)


@pytest.mark.parametrize("batches_before", [1, 4, 40])
@pytest.mark.parametrize("replay", [True, False], ids=["replay", "none kept"])
async def test_an_engine_that_restarts_is_noticed_by_its_numbers(replay: bool, batches_before: int) -> None:
    """Situation 10: nothing of the old cache is claimed. Method: the connection does not break, as behind a
    proxy; the new publisher's messages have lower numbers, some of which were seen with other contents."""
    mirror = Mirror()
    async with open_publisher(replay=replay) as (publisher, endpoints), follow(endpoints, mirror) as stream:
        await publisher.subscribed()
        for number in range(batches_before):
            publisher.publish(stored_prompt(prompt(number, 1)))
        await mirror.until(lambda: len(mirror.sync.tree) == batches_before)
        publisher.begin_again()
        for number in range(100, 104):
            publisher.publish(stored_prompt(prompt(number, 1)))
        await mirror.until(lambda: all(mirror.match(prompt(number, 1)) for number in range(100, 104)))
        assert len(mirror.sync.tree) == 4
        assert (mirror.restarts, stream.complete) == (1, True)


@pytest.mark.parametrize("batches_since", [0, 1, 2, 5])
@pytest.mark.parametrize("replay", [True, False], ids=["replay", "none kept"])
async def test_an_engine_that_restarts_is_noticed_by_the_connection(replay: bool, batches_since: int) -> None:
    """Situation 10. Method: the new publisher has sent less, as much or more before anybody listens."""
    mirror = Mirror()
    async with trio.open_nursery() as nursery:
        async with open_publisher(replay=replay) as (old, endpoints):
            stream = KvEventStream(endpoints, mirror, poll_interval_s=0.05)
            nursery.start_soon(stream.run)
            await old.subscribed()
            old.publish(stored_prompt(prompt(1, 1)))
            old.publish(stored_prompt(prompt(2, 1)))
            await mirror.until(lambda: len(mirror.sync.tree) == 2)
        async with open_publisher(at=endpoints) as (new, _):
            for number in range(100, 100 + batches_since):
                new.keep_events(stored_prompt(prompt(number, 1)))
            await new.subscribed()
            new.publish(stored_prompt(prompt(99, 1)))
            await mirror.until(lambda: mirror.match(prompt(99, 1)) == 1)
            assert len(mirror.sync.tree) == (batches_since + 1 if replay else 1)
            assert mirror.match(prompt(1, 1)) == mirror.match(prompt(2, 1)) == 0
            assert stream.complete == (replay or batches_since == 0)
        nursery.cancel_scope.cancel()


async def test_a_publisher_that_keeps_nothing_is_followed_all_the_same() -> None:
    """Method: it has an endpoint for replay, and answers that there is nothing."""
    mirror = Mirror()
    async with open_publisher(keeps=0) as (publisher, endpoints):
        publisher.publish(stored_prompt(prompt(1, 1)))
        async with follow(endpoints, mirror) as stream:
            await publisher.subscribed()
            for number in (2, 3):
                publisher.publish(stored_prompt(prompt(number, 1)))
                await mirror.until(lambda: stream.counts.rebuilds == 1)
            await mirror.until(lambda: mirror.match(prompt(3, 1)) == 1)
            assert not stream.complete


async def test_a_message_that_cannot_be_read_empties_the_tree() -> None:
    """It may have said anything; what follows it is read."""
    mirror = Mirror()
    async with open_publisher() as (publisher, endpoints), follow(endpoints, mirror) as stream:
        publisher.publish(stored_prompt(prompt(1, 1)))
        await mirror.until(lambda: len(mirror.sync.tree) == 1)
        publisher.publish_raw(b"\x93\x01nonsense")
        publisher.publish(stored_prompt(prompt(2, 1)))
        await mirror.until(lambda: mirror.match(prompt(2, 1)) == 1)
        assert mirror.match(prompt(1, 1)) == 0
        assert (stream.counts.undecodable, stream.complete) == (1, False)


@pytest.mark.parametrize("replay", [True, False], ids=["replay", "none kept"])
async def test_a_stream_that_cannot_be_followed_says_so_and_claims_nothing(replay: bool) -> None:
    """And goes on as soon as it can. Method: nobody there at first, then somebody, then nobody."""
    async with open_publisher(replay=replay) as (_, endpoints):
        pass
    mirror = Mirror()
    stream = KvEventStream(endpoints, mirror, poll_interval_s=0.05, replay_timeout_s=0.2, lost_after_s=0.2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        await mirror.until(lambda: mirror.reachable == [False])
        async with open_publisher(at=endpoints) as (publisher, _):
            await publisher.subscribed()
            await mirror.until(lambda: mirror.reachable == [False, True])
            publisher.publish(stored_prompt(prompt(1, 1)))
            await mirror.until(lambda: len(mirror.sync.tree) == 1)
        await mirror.until(lambda: mirror.reachable == [False, True, False])
        assert len(mirror.sync.tree) == 0
        nursery.cancel_scope.cancel()


async def test_blocks_that_more_than_tokens_decide_are_left_out() -> None:
    """A salt is told; SGLang's `extra_key` shows in the first block's name only."""
    mirror = Mirror()
    async with open_publisher() as (publisher, endpoints), follow(endpoints, mirror) as stream:
        publisher.publish(stored_prompt(prompt(1, 1)))
        publisher.publish(stored_prompt(prompt(2, 2)) | {"cache_salt": "s"})
        publisher.publish(stored([77, 78], None, prompt(3, 2)))
        publisher.publish(stored([79], 78, prompt(4, 1)))
        publisher.publish(stored_prompt(prompt(1, 2), first=1))
        await mirror.until(lambda: mirror.match(prompt(1, 2)) == 2)
        assert len(mirror.sync.tree) == 2
        assert stream.counts.left_out == 4


async def test_a_reply_waits_for_the_events_of_its_prompt() -> None:
    """No longer than it may, and not at all for what had been cached."""
    mirror = Mirror()
    tokens = prompt(1, 3)
    async with open_publisher() as (publisher, endpoints), follow(endpoints, mirror) as stream:
        publisher.publish(stored_prompt(prompt(9, 1)))
        await mirror.until(lambda: len(mirror.sync.tree) == 1)
        with stream.watch(tokens) as watch:
            assert not await watch.covered(0, within_s=0.01)
            publisher.publish(stored_prompt(prompt(2, 3)))
            await mirror.until(lambda: mirror.match(prompt(2, 3)) == 3)
            assert not await watch.covered(0, within_s=0), "those were another prompt's"
            publisher.publish(stored_prompt(tokens))
            assert await watch.covered(0, within_s=20)
            assert mirror.match(tokens) == 3
        with stream.watch([*tokens, 1]) as watch:
            assert await watch.covered(3 * PAGE, within_s=0)
        with stream.watch(tokens[:5]) as watch:
            assert await watch.covered(0, within_s=0), "too short to be stored"
        with stream.watch(tokens) as watch:
            assert await watch.covered(2 * PAGE, within_s=0), "the last token is always computed"
        with stream.watch(None) as watch:
            assert await watch.covered(0, within_s=0), "nobody knows what to wait for"


async def test_answers_teach_what_the_stream_began_too_late_to_see() -> None:
    """Method: the history is cut, so a hot prefix is never told again; an answer says it is cached."""
    mirror = Mirror()
    tokens = prompt(1, 5)
    async with open_publisher(keeps=1) as (publisher, endpoints):
        publisher.publish(stored_prompt(tokens[: 3 * PAGE]))
        publisher.publish(stored_prompt(prompt(9, 1)))
        async with follow(endpoints, mirror) as stream:
            with stream.watch(tokens) as watch:
                publisher.publish(stored_prompt(tokens, first=3))
                assert await watch.covered(3 * PAGE, within_s=20)
            assert mirror.match(tokens) == 5
            assert mirror.sync.unkeyed_blocks == 0
            publisher.publish(removed(sglang_block_hashes(tokens, PAGE)[2:]))
            await mirror.until(lambda: mirror.match(tokens) == 2)


@pytest.mark.parametrize("event", ["removed", "cleared"])
async def test_an_answer_teaches_nothing_that_was_removed_meanwhile(event: str) -> None:
    """The answer may be older than events that overtook it."""
    mirror = Mirror()
    tokens = prompt(1, 5)
    names = sglang_block_hashes(tokens, PAGE)
    async with open_publisher(keeps=1) as (publisher, endpoints):
        publisher.publish(stored_prompt(tokens))
        publisher.publish(stored_prompt(prompt(9, 1)))
        async with follow(endpoints, mirror) as stream:
            with stream.watch(tokens) as watch:
                publisher.publish(removed(names[2:]) if event == "removed" else CLEARED)
                publisher.publish(stored_prompt(prompt(8, 1)))
                await mirror.until(lambda: mirror.match(prompt(8, 1)) == 1)
                await watch.covered(5 * PAGE, within_s=0)
            assert mirror.match(tokens) == (2 if event == "removed" else 0)


async def test_a_stream_leaves_nothing_open() -> None:
    """Method: as many descriptors after twenty streams as after one."""
    open_descriptors = []
    async with open_publisher() as (publisher, endpoints):
        publisher.publish(stored_prompt(prompt(1, 1)))
        for _ in range(20):
            async with follow(endpoints, Mirror()):
                pass
            open_descriptors.append(len(os.listdir("/proc/self/fd")))
    assert open_descriptors[-1] <= open_descriptors[0] + 2
