"""Load that is fresher than gossip: nodes are asked, and the one that is to serve has the last word."""

from __future__ import annotations

from itertools import pairwise

import trio
from trio.testing import MockClock

from peerinfer.config import Config, RoutingConfig
from peerinfer.core.frames import Ask, Request
from peerinfer.node.ask import ASK_AGAIN_S
from peerinfer.node.ports import Call
from tests.node.swarm import Answer, Member, ask, completion, world

SLOW = {"prefill_tokens_per_s": 500.0, "slots": 8}
PREFIX = "x" * 4000


async def _together(*requests: tuple[Member, str]) -> list[Answer]:
    answers: list[Answer | None] = [None] * len(requests)

    async def one(place: int, member: Member, prompt: str) -> None:
        answers[place] = await ask(member, completion(prompt))

    async with trio.open_nursery() as nursery:
        for place, (member, prompt) in enumerate(requests):
            nursery.start_soon(one, place, member, prompt)
    return [answer for answer in answers if answer is not None]


async def _owner_is_known(swarm: object, owner: Member) -> None:
    """One node has the prefix, all know, and nothing is going on any more."""
    await ask(owner, completion(PREFIX, policy="local"))
    await trio.sleep(60.0)


def _outcomes(member: Member, answer: Answer) -> list[str]:
    decision = member.node.context.decisions.get(answer.reply.request_id)
    assert decision is not None
    return [attempt.outcome for attempt in decision.attempts]


async def test_a_peer_refuses_what_would_be_served_sooner_elsewhere(autojump_clock: MockClock) -> None:
    """Two nodes send it a prompt of 4.8 s at the same moment, each believing it to be idle; the second one
    would wait, and is served sooner by its own node, which needs 8 s."""
    config = Config(routing=RoutingConfig(ask_peers_max=0, placement_gain=0.0))
    async with world(3, config=config, **SLOW) as swarm:
        await _owner_is_known(swarm, swarm[2])
        tails = ["y" * 2400, "z" * 2400]
        answers = await _together((swarm[0], PREFIX[:1600] + tails[0]), (swarm[1], PREFIX[:1600] + tails[1]))
        outcomes = sorted(_outcomes(swarm[place], answer) for place, answer in enumerate(answers))
        assert outcomes == [["served"], ["slower", "served"]]
        assert swarm[0].state_of(swarm[2]) == swarm[1].state_of(swarm[2]) == "alive", "nothing failed"


async def test_busy_peers_are_asked_and_avoided_before_gossip_tells(autojump_clock: MockClock) -> None:
    """The owner gets work from its own clients; a moment later another node decides, and asks first."""
    async with world(3, **SLOW) as swarm:
        await _owner_is_known(swarm, swarm[2])
        for _ in range(8):
            await ask(swarm[2], completion("w" * 4000 + str(trio.current_time()), policy="local"))
        async with trio.open_nursery() as nursery:
            for number in range(4):
                busy = completion(f"{number}" * 4000, policy="local")
                nursery.start_soon(ask, swarm[2], busy)
            await trio.sleep(0.01)
            answer = await ask(swarm[0], completion(PREFIX[:2000] + "v" * 2000))
            assert answer.reply.served_by != swarm[2].peer_id
            assert _outcomes(swarm[0], answer) == ["served"], "it did not have to be refused"
            decision = swarm[0].node.decision(answer.reply.request_id)
            assert decision is not None
            assert set(decision["asked"]) == {swarm[1].peer_id, swarm[2].peer_id}  # type: ignore[call-overload]
            nursery.cancel_scope.cancel()


async def test_a_prompt_that_another_node_has_just_sent_somewhere_is_found(autojump_clock: MockClock) -> None:
    """Goal: two clients with a new prefix come to two nodes, the second before anybody was told of the first,
    and the prefix is computed once. Method: many prefixes; without asking some are computed twice."""

    async def computed(config: Config) -> int:
        async with world(4, config=config, prefill_tokens_per_s=5000.0, slots=8) as swarm:
            await ask(swarm[0], completion("warm" * 500))  # a rate is measured
            await trio.sleep(60.0)
            total = 0
            for number in range(8):
                prefix = f"{number:04}" * 1000
                async with trio.open_nursery() as nursery:
                    cached: list[int] = []

                    async def one(member: Member, prompt: str) -> None:
                        answer = await ask(member, completion(prompt))
                        cached.append(answer.end.cached_tokens)  # noqa: B023

                    nursery.start_soon(one, swarm[1], prefix + "a" * 100)
                    await trio.sleep(0.05)
                    nursery.start_soon(one, swarm[2], prefix + "b" * 100)
                total += sum(each < 3000 for each in cached)
                await trio.sleep(60.0)
            return total

    assert await computed(Config()) == 8
    assert await computed(Config(routing=RoutingConfig(ask_peers_max=0))) > 8


async def test_a_peer_that_does_not_answer_is_not_waited_for_at_each_new_prompt(
    autojump_clock: MockClock,
) -> None:
    """Goal: one busy machine does not slow the others down. Method: a peer whose gossip is heard and that is
    silent when asked what it has; a new prompt each half second, then that peer answers again."""
    async with world(4, prefill_tokens_per_s=20_000.0, slots=8) as swarm:
        await ask(swarm[0], completion("warm" * 500))  # a rate is measured
        await trio.sleep(60.0)
        asked_at: list[float] = []
        silent, serve_call = True, swarm[1].node.serve_call

        async def serve(call: Call, opening: Request | Ask) -> None:
            if isinstance(opening, Ask) and opening.keys:
                asked_at.append(trio.current_time())
                if silent:
                    await trio.sleep_forever()
            await serve_call(call, opening)

        swarm[1].node.serve_call = serve  # type: ignore[method-assign]
        for number in range(40):
            silent = number < 20
            await ask(swarm[0], completion(f"{number:04}" * 500, max_tokens=1))
            await trio.sleep(0.5)
        assert swarm[0].state_of(swarm[1]) == "alive"
        between_s = [after - before for before, after in pairwise(asked_at)]
        assert min(between_s[:2]) >= ASK_AGAIN_S
        assert max(between_s[-10:]) < 1.0
