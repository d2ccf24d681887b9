"""Small promises of a node as a server of its peers and of a swarm; each test fails without its line."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from peerinfer.config import Config, RequestConfig, RoutingConfig
from peerinfer.core.frames import Accept, Ask, EndFrame, Heartbeat, Refuse, Request, Wait
from peerinfer.core.types import Chunk, RequestError
from peerinfer.core.wire import UINT_MAX
from peerinfer.node.probes import INCARNATION_MAX
from peerinfer.sim.network import Conditions
from tests.node.swarm import Member, World, ask, completion, text, world

PAPER = Config(routing=RoutingConfig(policy="longest-prefix"))


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


async def _tells_of_a_life(swarm: World, known_incarnation: int) -> None:
    """From now on node 1 answers every question of node 0 with this."""

    async def answer(call, opening):  # type: ignore[no-untyped-def]
        load = swarm[1].engine.load()
        wait = Wait(id=opening.id, wait_s=0.0, incarnation=1, seq=0, load=load)
        await call.send(replace(wait, known_incarnation=known_incarnation))

    swarm[1].node.serve_call = answer  # type: ignore[method-assign]
    await trio.sleep(40.0)


async def test_an_incarnation_that_no_clock_has_made_is_not_believed(autojump_clock: MockClock) -> None:
    async with world(2) as swarm:
        before = swarm[0].node.status()["incarnation"]
        await _tells_of_a_life(swarm, INCARNATION_MAX + 1)
        assert swarm[0].node.status()["incarnation"] == before
        assert swarm[0].node.status()["dropped"]["request"] >= 1  # type: ignore[index]


async def test_a_node_whose_later_life_is_known_goes_above_it_and_says_what_that_may_be(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a second process with a copy of its data directory."""
    async with world(2) as swarm:
        known = swarm[0].node.context.incarnation + 1000
        await _tells_of_a_life(swarm, known)
        assert swarm[0].node.context.incarnation > known
    assert [each.levelname for each in caplog.records if "a copy of its data directory" in each.message] == [
        "WARNING"
    ]


async def test_a_node_whose_engine_crashes_begins_a_new_life_and_blames_nobody(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: no operator looks for a second process because an engine was restarted."""
    async with world(2) as swarm:
        before = swarm[0].node.context.incarnation
        swarm[0].engine.crash()
        await trio.sleep(1.0)
        assert swarm[0].node.context.incarnation > before
    assert "a copy of its data directory" not in caplog.text


@pytest.mark.parametrize(
    "lie",
    [
        {"sse_json": b"<html>"},
        {"sse_json": b'{"a":\n\n1}'},
        {"sse_json": b"1"},
        {"sse_json": '{"a":1}'.encode("utf-16")},
        {"whole": True},
    ],
)
async def test_a_chunk_that_is_no_event_is_refused_and_counted(
    autojump_clock: MockClock, lie: dict[str, object]
) -> None:
    """Where it is noticed, another can still answer; where it goes out, the client's stream is broken."""
    async with world(2) as swarm:
        chunks = swarm[1].engine.run_infer

        @asynccontextmanager
        async def garbled(request):  # type: ignore[no-untyped-def]
            async with chunks(request) as items:

                async def garble():  # type: ignore[no-untyped-def]
                    async for item in items:
                        yield replace(item, **lie) if isinstance(item, Chunk) else item

                yield garble()

        swarm[1].engine.run_infer = garbled  # type: ignore[method-assign]
        with pytest.raises(RequestError):
            await ask(swarm[0], completion(text(1), target=swarm[1].peer_id, stream=True))
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


async def test_what_a_peer_says_of_its_prompts_length_harms_nobody_else(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a prompt is read its length is its peer's word; the load that others are told has that in it.

    Method: while the longest prompt that can be said is being read, a third node asks for the wait.
    """
    async with world(3) as swarm:
        tokenizer = swarm[1].node.context.tokenizer
        assert tokenizer is not None
        reading = trio.Event()

        async def read_for_ever(*_: object) -> None:
            reading.set()
            await trio.sleep_forever()

        async with swarm[0].overlay.open_call(swarm[1].peer_id) as call:
            monkeypatch.setattr(tokenizer, "encode", read_for_ever)
            await call.send(replace(_request(swarm[1], completion(text(1)).raw), prompt_pages=UINT_MAX))
            await reading.wait()
            async with swarm[2].overlay.open_call(swarm[1].peer_id) as other:
                await other.send(Ask(id="ask", prompt_tokens=480, expected_cached_tokens=0))
                frame = await other.receive()
        assert isinstance(frame, Wait)
        info = swarm[1].node.context.engine.info
        assert frame.load.queued_prefill_tokens == info.context_tokens_max
