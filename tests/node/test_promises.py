"""Small promises of the node, one test each; every one of them fails without the line that keeps it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from peerinfer.config import Config, RequestConfig, RoutingConfig
from peerinfer.core.frames import Ask, Cancel, ErrorFrame, Refuse, Request, Wait
from peerinfer.core.types import RequestError
from peerinfer.node.ports import EngineError
from tests.node.swarm import Member, ask, completion, text, world

PAPER = Config(routing=RoutingConfig(policy="longest-prefix"))


def _unsettled(member: Member) -> list[int]:
    return [record.unsettled_tokens for record in member.node._context.view.peers()]


async def test_what_was_forwarded_is_settled_at_the_acceptance_and_after_a_failure(
    autojump_clock: MockClock,
) -> None:
    async with world(2, config=PAPER, prefill_tokens_per_s=100.0) as swarm:
        target = swarm[1].peer_id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, swarm[0], completion(text(1), target=target))
            await trio.sleep(0.0005)
            assert _unsettled(swarm[0]) == [480]
            await trio.sleep(0.1)
            assert _unsettled(swarm[0]) == [0], "accepted: the peer's own load tells it now"
            nursery.cancel_scope.cancel()
        swarm.network.partition(swarm[0].peer_id, target)
        with pytest.raises(RequestError):
            await ask(swarm[0], completion(text(2), target=target))
        assert _unsettled(swarm[0]) == [0]


async def test_what_is_served_here_counts_before_the_engine_has_it(autojump_clock: MockClock) -> None:
    """Two cold prompts are decided before an engine that is slow to take them in has the first."""
    async with world(2, prefill_tokens_per_s=480.0) as swarm:
        served = []
        take_in = swarm[0].engine.run_infer

        @asynccontextmanager
        async def slowly(request):  # type: ignore[no-untyped-def]
            await trio.sleep(0.1)
            async with take_in(request) as items:
                yield items

        swarm[0].engine.run_infer = slowly  # type: ignore[method-assign]

        async def one(seed: int) -> None:
            served.append((await ask(swarm[0], completion(text(seed)))).reply.served_by)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, 1)
            nursery.start_soon(one, 2)
        assert len(set(served)) == 2


async def test_leaving_sends_a_cancel_frame_and_keeps_the_stream(autojump_clock: MockClock) -> None:
    async with world(2) as swarm:
        target = swarm[1].peer_id
        frames: list[object] = []
        serve = swarm[1].node.serve_call

        async def listening(call, opening):  # type: ignore[no-untyped-def]
            receive = call.receive

            async def noted():  # type: ignore[no-untyped-def]
                frames.append(await receive())
                return frames[-1]

            call.receive = noted
            await serve(call, opening)

        swarm[1].node.serve_call = listening  # type: ignore[method-assign]
        with trio.move_on_after(0.5):
            await ask(swarm[0], completion(text(1), max_tokens=10_000, target=target))
        await trio.sleep(0.1)
        assert [type(frame) for frame in frames] == [Cancel]


@pytest.mark.parametrize("how", ["by breaking off", "by an error frame"])
async def test_a_peer_that_fails_is_tried_seldom(autojump_clock: MockClock, how: str) -> None:
    """Its engine looks idle since it serves nothing; without memory it would be the first choice for ever."""
    async with world(3) as swarm:
        broken = swarm[2]

        async def refuse_all(call, opening):  # type: ignore[no-untyped-def]
            if isinstance(opening, Ask):
                load = broken.engine.load()
                await call.send(Wait(id=opening.id, wait_s=0.0, incarnation=1, seq=0, load=load))
            elif how == "by an error frame":
                await call.send(ErrorFrame(id=opening.id, code="engine_failed", message="again"))
            else:
                raise RuntimeError("this engine fails")

        broken.node.serve_call = refuse_all  # type: ignore[method-assign]
        tried = 0
        for seed in range(40):
            answer = await ask(swarm[0], completion(text(seed)))
            decision = swarm[0].node.decision(answer.reply.request_id)
            assert decision is not None
            tried += decision["attempts"][0]["peer_id"] == broken.peer_id  # type: ignore[index]
            await trio.sleep(0.2)
        assert 1 <= tried <= 6


async def test_a_peer_that_did_not_answer_is_not_waited_for_again(autojump_clock: MockClock) -> None:
    """It gossips on and holds both prefixes, but does not accept: the second request must not wait, too."""
    async with world(2, config=PAPER) as swarm:
        for seed in (1, 2):
            await ask(swarm[1], completion(text(seed), policy="local"))
        await swarm.all_know_all()

        async def sleep_on(call, opening):  # type: ignore[no-untyped-def]
            await trio.sleep_forever()

        swarm[1].node.serve_call = sleep_on  # type: ignore[method-assign]
        waited = []
        for seed in (1, 2):
            started = trio.current_time()
            assert (await ask(swarm[0], completion(text(seed)))).reply.route == "local"
            waited.append(trio.current_time() - started)
        assert waited[0] >= PAPER.request.accept_timeout_s > 1.0 > waited[1]


async def test_a_peer_that_is_heard_through_others_only_is_tried_seldom(autojump_clock: MockClock) -> None:
    async with world(3) as swarm:
        swarm.network.partition(swarm[0].peer_id, swarm[2].peer_id)
        await trio.sleep(20.0)
        lost = 0
        for seed in range(40):
            answer = await ask(swarm[0], completion(text(seed)))
            decision = swarm[0].node.decision(answer.reply.request_id)
            assert decision is not None
            lost += decision["attempts"][0]["outcome"] == "lost"  # type: ignore[index]
        assert lost <= 8


async def test_retries_at_peers_have_a_budget(autojump_clock: MockClock) -> None:
    """Every peer refuses; the first ten requests may retry, then one in ten."""
    config = replace(PAPER, routing=RoutingConfig(policy="round-robin"))
    async with world(4, config=config) as swarm:
        for member in swarm.members[1:]:

            async def refuse(call, opening):  # type: ignore[no-untyped-def]
                if isinstance(opening, Request):
                    await call.send(Refuse(id=opening.id, code="draining", message="no"))

            member.node.serve_call = refuse  # type: ignore[method-assign]
        retries = 0
        for seed in range(60):
            answer = await ask(swarm[0], completion(text(seed), max_tokens=1))
            assert answer.reply.route == "local"
            decision = swarm[0].node.decision(answer.reply.request_id)
            assert decision is not None
            peers = [a for a in decision["attempts"] if a["peer_id"] != swarm[0].peer_id]  # type: ignore[attr-defined]
            retries += max(0, len(peers) - 1)
            await trio.sleep(1.0)
        assert 0 < retries <= 10 + 60 * Config().request.retry_share


@pytest.mark.parametrize("forwarded", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 5000])
async def test_no_request_outlives_its_deadline(
    autojump_clock: MockClock, forwarded: bool, max_tokens: int
) -> None:
    """Before the first chunk (a long prefill) and after it (a long answer), here and at a peer."""
    config = replace(Config(), request=RequestConfig(deadline_s=5.0))
    async with world(2, config=config, prefill_tokens_per_s=100.0, decode_tokens_per_s=50.0) as swarm:
        prompt = text(1, 4000) if max_tokens == 1 else text(1, 64)
        target = swarm[1 if forwarded else 0].peer_id
        started = trio.current_time()
        with pytest.raises(RequestError) as caught:
            await ask(swarm[0], completion(prompt, max_tokens=max_tokens, target=target))
        assert caught.value.status == 504
        assert trio.current_time() - started < 7.0
        await trio.sleep(1.0)
        for member in swarm.members:
            assert (member.engine.load().running, member.engine.load().queued) == (0, 0)


async def test_a_peer_that_failed_is_tried_by_one_request_and_then_trusted(autojump_clock: MockClock) -> None:
    """Its breaker shows in the node's own JSON: open, half open, and closed once a request was served."""
    async with world(2, config=PAPER) as swarm:
        for seed in range(4):
            await ask(swarm[1], completion(text(seed), policy="local"))
        await swarm.all_know_all()
        take_in = swarm[1].engine.run_infer

        def breaker() -> tuple[object, object]:
            shown = swarm[0].peers()[swarm[1].peer_id]["breaker"]
            return shown["state"], shown["failures"]  # type: ignore[index]

        @asynccontextmanager
        async def failing(request):  # type: ignore[no-untyped-def]
            raise EngineError("it fails at everything")
            yield

        assert breaker() == ("closed", 0)
        swarm[1].engine.run_infer = failing  # type: ignore[method-assign]
        assert (await ask(swarm[0], completion(text(0)))).reply.route == "local"
        assert breaker() == ("open", 1)
        await trio.sleep(3.0)
        assert breaker() == ("half-open", 1)
        swarm[1].engine.run_infer = take_in  # type: ignore[method-assign]
        routes: list[str] = []

        async def one(seed: int) -> None:
            routes.append((await ask(swarm[0], completion(text(seed)))).reply.route)

        async with trio.open_nursery() as nursery:
            for seed in (1, 2, 3):
                nursery.start_soon(one, seed)
        assert sorted(routes) == ["forwarded", "local", "local"]
        assert breaker() == ("closed", 0)


async def test_a_node_that_has_just_joined_waits_out_a_freeze_of_its_peers(autojump_clock: MockClock) -> None:
    """Its own engine still loads, and its only peer is cut off for a while: time, no error."""
    async with world(1) as swarm:
        await trio.sleep(1.0)
        loading = await swarm.start(load_s=1000.0)
        while loading.state_of(swarm[0]) != "alive":
            await trio.sleep(0.1)
        swarm.network.partition(swarm[0].peer_id, loading.peer_id)
        while loading.state_of(swarm[0]) == "alive":
            await trio.sleep(0.1)
        async with trio.open_nursery() as nursery:

            async def heal() -> None:
                await trio.sleep(3.0)
                swarm.network.heal(swarm[0].peer_id, loading.peer_id)

            nursery.start_soon(heal)
            answer = await ask(loading, completion(text(1)))
        assert answer.reply.served_by == swarm[0].peer_id


async def test_a_peer_that_says_slower_for_ever_does_not_hold_a_request(autojump_clock: MockClock) -> None:
    """It gossips that it is idle, holds the prefix, and sends each request on, also one that may wait."""
    async with world(2, prefill_tokens_per_s=100.0) as swarm:
        liar = swarm[1]
        await ask(liar, completion(text(1), policy="local"))
        await swarm.all_know_all()
        await trio.sleep(60)
        refused = 0

        async def send_on(call, opening):  # type: ignore[no-untyped-def]
            nonlocal refused
            load = liar.engine.load()
            if isinstance(opening, Ask):
                await call.send(Wait(id=opening.id, wait_s=0.0, incarnation=1, seq=0, load=load))
                return
            refused += 1
            await call.send(Refuse(id=opening.id, code="slower", message="elsewhere", load=load))

        liar.node.serve_call = send_on  # type: ignore[method-assign]
        with trio.fail_after(60):
            answer = await ask(swarm[0], completion(text(1)))
        assert answer.reply.route == "local"
        assert 1 <= refused <= RoutingConfig().slower_max + 1


async def test_an_answer_that_goes_on_nowhere_is_not_the_clients_fault(autojump_clock: MockClock) -> None:
    """Its target is the only one allowed, and is gone: the request was right, the answer is broken."""
    async with world(2, decode_tokens_per_s=10.0) as swarm:
        incoming = completion(text(1), max_tokens=100, stream=True, target=swarm[1].peer_id)

        async def cut_off() -> None:
            async with swarm[0].node.handle(incoming) as reply:
                async for _ in reply.chunks:
                    swarm.network.partition(swarm[0].peer_id, swarm[1].peer_id)

        with pytest.raises(RequestError) as caught:
            await cut_off()
        assert (caught.value.status, caught.value.code) == (502, "stream_broken")
        assert swarm[0].count("failed") == 1
