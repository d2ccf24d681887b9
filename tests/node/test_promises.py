"""Small promises of the node, one test each; every one of them fails without the line that keeps it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from peerinfer.config import Config, RequestConfig, RoutingConfig
from peerinfer.core.frames import Accept, Ask, Cancel, EndFrame, ErrorFrame, Heartbeat, Refuse, Request, Wait
from peerinfer.core.types import RequestError
from peerinfer.node.ports import EngineError
from peerinfer.node.probes import INCARNATION_MAX
from peerinfer.sim.network import Conditions
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


async def test_a_peer_stops_at_the_deadline_that_it_was_given(autojump_clock: MockClock) -> None:
    """The entry node may be cut off and never say cancel."""
    async with world(2, decode_tokens_per_s=10.0) as swarm:
        async with swarm[0].overlay.open_call(swarm[1].peer_id) as call:
            await call.send(_request(swarm[1], completion(text(1), max_tokens=10_000).raw, time_left_s=3.0))
            started = trio.current_time()
            while not isinstance(await call.receive(), Accept):
                pass
            with trio.fail_after(10.0):
                while trio.current_time() - started < 3.5:
                    if type(await call.receive()).__name__ == "ErrorFrame":
                        break
        assert swarm[1].engine.load().running == 0


def _request(server: Member, raw: bytes, *, time_left_s: float = 60.0, other_model: bool = False) -> Request:
    fingerprint = server.node._context.fingerprint
    return Request(
        id="req-by-hand",
        endpoint="completions",
        body=raw,
        fingerprint=bytes(16) if other_model else fingerprint,
        prompt_pages=30,
        expected_cached_tokens=0,
        time_left_s=time_left_s,
    )


async def test_a_request_for_another_model_is_refused(autojump_clock: MockClock) -> None:
    async with world(2) as swarm, swarm[0].overlay.open_call(swarm[1].peer_id) as call:
        await call.send(_request(swarm[1], completion(text(1)).raw, other_model=True))
        frame = await call.receive()
        assert isinstance(frame, Refuse)
        assert frame.code == "wrong_model"


async def test_a_busy_peer_beats_while_it_has_nothing_to_send(autojump_clock: MockClock) -> None:
    """Slow is not dead: prefill takes longer than the silence that is allowed."""
    async with world(2, prefill_tokens_per_s=40.0) as swarm:
        answer = await ask(swarm[0], completion(text(1), target=swarm[1].peer_id))
        assert answer.reply.route == "forwarded"
        async with swarm[0].overlay.open_call(swarm[1].peer_id) as call:
            await call.send(_request(swarm[1], completion(text(2)).raw))
            kinds = []
            while not kinds or kinds[-1] is not EndFrame:
                kinds.append(type(await call.receive()))
        assert kinds[0] is Accept
        assert kinds.count(Heartbeat) >= 8


async def test_a_full_own_queue_sends_the_client_to_the_next_best(autojump_clock: MockClock) -> None:
    """The prefix is here, and so are 4 x queued_per_slot_max waiting requests; the peer idles."""
    config = replace(PAPER, request=RequestConfig(queued_per_slot_max=1))
    async with world(2, config=config, slots=1, prefill_tokens_per_s=50.0) as swarm:
        await ask(swarm[0], completion(text(1), policy="local"))
        async with trio.open_nursery() as nursery:
            for seed in range(2, 7):
                nursery.start_soon(ask, swarm[0], completion(text(seed), policy="local"))
                await trio.sleep(0.01)
            with pytest.raises(RequestError) as caught:
                await ask(swarm[0], completion(text(1), policy="local"))
            assert caught.value.status == 503
            wait_s = swarm[0].node.context.own_wait_s()
            assert caught.value.retry_after_s == pytest.approx(wait_s, rel=0.1), "the true wait"
            answer = await ask(swarm[0], completion(text(1)))
            assert answer.reply.served_by == swarm[1].peer_id
            nursery.cancel_scope.cancel()


async def test_a_prefix_that_is_used_is_told_first(autojump_clock: MockClock) -> None:
    """Line 13 and its twin at a peer: use moves a prefix to the head of the snapshot, the last to be cut."""
    async with world(2, config=PAPER) as swarm:
        for seed in (1, 2):
            await ask(swarm[1], completion(text(seed), policy="local"))
        own = swarm[1].node._context.view.own
        hasher = swarm[1].node._context.hasher
        first, second = (hasher.keys(text(seed).encode()) for seed in (1, 2))
        assert own.ordered_keys()[0] == second[0]
        await trio.sleep(1.0)
        await ask(swarm[1], completion(text(1), policy="local"))
        assert own.ordered_keys()[0] == first[0]
        await trio.sleep(1.0)
        await ask(swarm[0], completion(text(2), target=swarm[1].peer_id))
        assert own.ordered_keys()[0] == second[0]


async def test_the_end_of_served_work_ends_a_push_back_at_once(autojump_clock: MockClock) -> None:
    """Without a client of its own the node must notice by what it serves for peers."""
    async with world(2, config=PAPER, slots=1, prefill_tokens_per_s=480.0) as swarm:
        target = swarm[1]
        async with trio.open_nursery() as nursery:
            for seed in range(5):
                nursery.start_soon(ask, swarm[0], completion(text(seed), target=target.peer_id))
            await trio.sleep(0.1)
            assert target.node._context.pushing_back
        await trio.sleep(0.01)
        assert not target.node._context.pushing_back


async def test_an_incarnation_that_no_clock_has_made_is_not_believed(autojump_clock: MockClock) -> None:
    async with world(2) as swarm:
        before = swarm[0].node.status()["incarnation"]

        async def lie(call, opening):  # type: ignore[no-untyped-def]
            await call.send(
                Wait(
                    id=opening.id,
                    wait_s=0.0,
                    incarnation=1,
                    seq=0,
                    load=swarm[1].engine.load(),
                    known_incarnation=INCARNATION_MAX + 1,
                )
            )

        swarm[1].node.serve_call = lie  # type: ignore[method-assign]
        await trio.sleep(40.0)
        assert swarm[0].node.status()["incarnation"] == before
        assert swarm[0].node.status()["dropped"]["request"] >= 1  # type: ignore[index]


async def test_a_chunk_that_is_no_json_is_refused_and_counted(autojump_clock: MockClock) -> None:
    async with world(2) as swarm:
        chunks = swarm[1].engine.run_infer

        @asynccontextmanager
        async def garbled(request):  # type: ignore[no-untyped-def]
            async with chunks(request) as items:

                async def garble():  # type: ignore[no-untyped-def]
                    async for item in items:
                        yield replace(item, sse_json=b"<html>") if hasattr(item, "sse_json") else item

                yield garble()

        swarm[1].engine.run_infer = garbled  # type: ignore[method-assign]
        with pytest.raises(RequestError):
            await ask(swarm[0], completion(text(1), target=swarm[1].peer_id))
        assert swarm[0].node.status()["dropped"]["request"] == 1  # type: ignore[index]


async def test_a_round_trip_measured_while_starting_is_soon_forgotten(autojump_clock: MockClock) -> None:
    async with world(2, delay_s=0.2) as swarm:
        swarm.network.set_conditions(swarm[0].peer_id, swarm[1].peer_id, Conditions(delay_s=0.001))
        await trio.sleep(8.0)
        assert swarm[0].peers()[swarm[1].peer_id]["rtt_s"] < 0.01  # type: ignore[operator]


async def test_a_served_request_is_closed_when_its_entry_node_dies(autojump_clock: MockClock) -> None:
    async with world(2, decode_tokens_per_s=5.0) as swarm:
        incoming = completion(text(1), max_tokens=100, target=swarm[1].peer_id)

        async def doomed() -> None:
            with pytest.raises(RequestError):
                await ask(swarm[0], incoming)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, swarm[0], incoming)
            await trio.sleep(2.0)
            swarm.crash(swarm[0])
            await trio.sleep(2.0)
            decision = swarm[1].node.decision(incoming.id)
            assert decision is not None
            assert decision["duration_s"] is not None
            assert swarm[1].engine.load().running == 0
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_a_prompt_that_is_too_long_is_refused_where_it_comes_in(
    autojump_clock: MockClock, endpoint: str
) -> None:
    """By no engine, and by no peer: nobody but the entry node hears of it."""
    async with world(2, config=PAPER, context_tokens=400) as swarm:
        prompt: dict[str, object] = {"prompt": text(1, 400)}
        if endpoint == "chat":
            prompt = {"messages": [{"role": "user", "content": text(1, 400)}]}
        incoming = replace(completion(""), endpoint=endpoint, body={"model": "simulated", **prompt})  # type: ignore[arg-type]
        for target in (None, swarm[1].peer_id):
            with pytest.raises(RequestError) as caught:
                await ask(swarm[0], replace(incoming, target=target))
            assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
        decision = swarm[0].node.decision(incoming.id)
        assert decision is not None
        assert decision["attempts"] == []
        assert swarm[1].node.decision(incoming.id) is None


async def test_requests_wait_for_an_engine_that_restarts_but_not_for_one_that_never_was_there(
    autojump_clock: MockClock,
) -> None:
    async with world(1, load_s=1.0) as swarm:
        with pytest.raises(RequestError) as caught:
            await ask(swarm[0], completion(text(1)))
        assert (caught.value.status, trio.current_time()) == (503, 0.0)
        await trio.sleep(2.0)
        swarm[0].engine.crash(down_s=3.0)
        assert (await ask(swarm[0], completion(text(1)))).end.usage.completion_tokens == 4
        assert trio.current_time() > 5.0


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
