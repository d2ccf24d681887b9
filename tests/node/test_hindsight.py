"""What a decision turned out to be worth is in its record, in `status` and in `peers`."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from peerinfer.config import Config, RoutingConfig
from tests.node.swarm import ask, completion, world

SLOW = {"prefill_tokens_per_s": 500.0}


async def test_a_forward_that_pays_is_counted_as_saved(autojump_clock: MockClock) -> None:
    """The prompt takes 4 s where it is not cached; forwarding it takes a few milliseconds."""
    async with world(2, config=Config(routing=RoutingConfig(placement_gain=9.0)), **SLOW) as swarm:
        prompt = "x" * 2000
        await ask(swarm[0], completion(prompt, policy="local"))
        for number in range(4):
            await ask(swarm[1], completion(f"{number}" * 200, policy="local"))
        await swarm.all_know_all(within_s=30.0)
        answer = await ask(swarm[1], completion(prompt))
        assert answer.reply.served_by == swarm[0].peer_id
        record = swarm[1].node.decision(answer.reply.request_id)
        assert record is not None
        assert record["regret_s"] == 0.0
        assert record["actual_s"] == pytest.approx(record["predicted_s"], abs=0.1)
        routing = swarm[1].node.status()["routing"]
        assert routing["saved_by_forwarding_s"] == pytest.approx(4.0, rel=0.05)  # type: ignore[index]
        assert routing["lost_by_forwarding_s"] == 0.0  # type: ignore[index]


async def test_a_forward_that_does_not_pay_is_counted_as_lost_and_regretted(
    autojump_clock: MockClock,
) -> None:
    """Both have the prompt; the paper's other baseline, round-robin, forwards it all the same."""
    async with world(2, **SLOW) as swarm:
        prompt = "x" * 2000
        for member in swarm.members:
            await ask(member, completion(prompt, policy="local"))
        for _ in range(6):
            await ask(swarm[1], completion(prompt, policy="round-robin"))
        status = swarm[1].node.status()
        assert status["requests"]["forwarded"] >= 2  # type: ignore[index]
        assert 0.0 < status["routing"]["lost_by_forwarding_s"] < 0.5  # type: ignore[index]
        assert swarm[1].peers()[swarm[0].peer_id]["prediction_error_s"] is not None
