"""A node that leaves gracefully: nothing new, and what runs comes to its end, here or elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from peerinfer.config import Config, RequestConfig
from peerinfer.core.types import RequestError
from peerinfer.node.anti_entropy import LOOK_S_MAX
from tests.node.swarm import Answer, Member, ask, completion, text, world


async def _leave(member: Member) -> None:
    """As the process does on SIGTERM."""
    await member.node.drain()
    member.scope.cancel()


async def test_what_runs_is_finished_and_nothing_new_is_taken(autojump_clock: MockClock) -> None:
    """The peers know at once; its own client's stream and a peer's are whole, and only then it is gone."""
    async with world(3) as swarm:
        leaving, entry = swarm[2], swarm[0]
        answers: dict[str, Answer] = {}

        async def one(name: str, member: Member, **how: object) -> None:
            incoming = completion(text(len(answers)), max_tokens=400, **how)  # type: ignore[arg-type]
            with leaving.node.at_work() if member is leaving else trio.CancelScope():
                answers[name] = await ask(member, incoming)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: one("client", leaving, policy="local"))
            nursery.start_soon(lambda: one("peer", entry, target=leaving.peer_id))
            await trio.sleep(0.5)
            started = trio.current_time()
            nursery.start_soon(_leave, leaving)
            await trio.sleep(0.1)
            assert entry.state_of(leaving) == "draining"
            assert not leaving.node.ready
            with pytest.raises(RequestError) as caught:
                await ask(leaving, completion(text(7)))
            assert (caught.value.status, caught.value.code) == (503, "shutting_down")
            assert caught.value.retry_after_s
            assert (await ask(entry, completion(text(8)))).reply.served_by != leaving.peer_id
        assert trio.current_time() - started < 3.0, "no longer than the streams"
        assert {name: answer.end.usage.completion_tokens for name, answer in answers.items()} == {
            "client": 400,
            "peer": 400,
        }
        assert {answer.reply.served_by for answer in answers.values()} == {leaving.peer_id}


async def test_what_takes_too_long_goes_on_elsewhere(autojump_clock: MockClock) -> None:
    """A peer's stream outlasts the time to leave: its client sees one whole answer."""
    config = replace(Config(), request=RequestConfig(drain_s=2.0))
    async with world(2, config=config) as swarm:
        alone = await ask(swarm[0], completion(text(1), max_tokens=1000, policy="local"))
        answers: list[Answer] = []

        async def one() -> None:
            incoming = completion(text(1), max_tokens=1000, target=swarm[1].peer_id)
            answers.append(await ask(swarm[0], replace(incoming, target=None, policy="round-robin")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            await trio.sleep(0.5)
            assert swarm[1].engine.load().running == 1
            started = trio.current_time()
            await _leave(swarm[1])
            assert trio.current_time() - started == pytest.approx(2.0)
        assert answers[0].text == alone.text
        assert answers[0].end.usage == alone.end.usage


async def test_an_idle_node_leaves_at_once(autojump_clock: MockClock) -> None:
    """Nor does it look like one that crashed, and it is soon forgotten."""
    async with world(2) as swarm:
        started = trio.current_time()
        await _leave(swarm[1])
        assert trio.current_time() == started
        await trio.sleep(0.1)
        assert swarm[0].state_of(swarm[1]) in ("draining", "left")
        config = Config().anti_entropy
        await trio.sleep(config.suspect_after * config.idle_interval_s)
        assert swarm[0].state_of(swarm[1]) == "left"
        await trio.sleep(config.forget_left_after_s + 2 * LOOK_S_MAX)
        assert swarm[1].peer_id not in swarm[0].peers()
