"""Algorithm 1 branch by branch, on a swarm in virtual time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from peerinfer.config import Config, RequestConfig, RoutingConfig
from peerinfer.core.types import Chunk, End, EngineState, InferRequest, PeerId, RequestError, Usage
from peerinfer.node.ports import EngineAwayError, EngineError
from peerinfer.node.reply import Reply
from peerinfer.node.serve import WHOLE_PIECE_BYTES
from peerinfer.sim.network import SimNetwork
from tests.node.swarm import Member, World, ask, completion, text, world

PAPER = Config(routing=RoutingConfig(policy="longest-prefix"))


def _decision(member: Member, reply: Reply) -> dict[str, object]:
    decision = member.node.decision(reply.request_id)
    assert decision is not None
    return decision


async def test_with_the_prefix_here_the_request_stays_here(autojump_clock: MockClock) -> None:
    """Lines 5-13: k = i, and the own tree has the prompt's pages afterwards."""
    async with world(2, config=PAPER) as swarm:
        first = await ask(swarm[0], completion(text(1)))
        again = await ask(swarm[0], completion(text(1)))
        assert (first.reply.route, again.reply.route) == ("local", "local")
        assert (first.end.cached_tokens, again.end.cached_tokens) == (0, 464)
        assert again.reply.expected_cached_tokens == 464
        assert again.text == first.text
        assert swarm[0].node.status()["cache"]["pages"] == 30  # type: ignore[index]
        assert swarm[0].count("served_local") == 2


async def test_with_the_prefix_elsewhere_it_is_forwarded_and_the_estimate_updated(
    autojump_clock: MockClock,
) -> None:
    """Lines 14-18: success inserts the prompt into the estimate at once, before any snapshot."""
    slow_polling = replace(PAPER, anti_entropy=replace(PAPER.anti_entropy, poll_interval_s=60.0))
    async with world(2, config=slow_polling) as swarm:
        await ask(swarm[1], completion(text(1)))
        here = await ask(swarm[0], completion(text(2), target=swarm[1].peer_id))
        assert here.reply.route == "forwarded"
        again = await ask(swarm[0], completion(text(2)))
        assert (again.reply.route, again.reply.served_by) == ("forwarded", swarm[1].peer_id)
        assert again.reply.expected_cached_tokens == again.end.cached_tokens == 464
        assert again.text == here.text
        assert swarm[1].count("served_for_peers") == 2
        serving = _decision(swarm[1], again.reply)
        assert (serving["role"], serving["entry"]) == ("serving", swarm[0].peer_id)


async def test_a_forwarded_request_is_never_forwarded_again(autojump_clock: MockClock) -> None:
    """One hop: node 1 serves what node 0 sends it even where node 2 has the longer prefix."""
    async with world(3, config=PAPER) as swarm:
        await ask(swarm[2], completion(text(1)))
        await swarm.all_know_all()
        answer = await ask(swarm[0], completion(text(1), target=swarm[1].peer_id))
        assert answer.reply.served_by == swarm[1].peer_id
        assert answer.end.cached_tokens == 0


async def _with_prefix_on_peer(swarm: World, *peers: int) -> None:
    for number in peers or (1,):
        await ask(swarm[number], completion(text(1), policy="local"))
    await swarm.all_know_all()


async def test_a_peer_that_died_is_replaced_by_the_next_best(autojump_clock: MockClock) -> None:
    """§3.3: the crash is not known yet when the request is sent; the own engine serves."""
    async with world(3, config=PAPER) as swarm:
        await _with_prefix_on_peer(swarm)
        async with trio.open_nursery() as nursery:

            async def crash_during_prefill() -> None:
                await trio.sleep(0.003)
                swarm.crash(swarm[1])

            nursery.start_soon(crash_during_prefill)
            answer = await ask(swarm[0], completion(text(1) + "tail" * 100))
        assert answer.reply.served_by != swarm[1].peer_id
        decision = _decision(swarm[0], answer.reply)
        assert [attempt["outcome"] for attempt in decision["attempts"]][-1] == "served"  # type: ignore[attr-defined]
        assert decision["attempts"][0] == {"peer_id": swarm[1].peer_id, "outcome": "lost"}  # type: ignore[index]


async def test_a_silent_peer_is_given_up_after_the_timeout_and_then_left_alone(
    autojump_clock: MockClock,
) -> None:
    """§3.3: a partition hides the peer; the sendRequest timeout fires and the request runs here."""
    async with world(2, config=PAPER) as swarm:
        await _with_prefix_on_peer(swarm)
        swarm.network.partition(swarm[0].peer_id, swarm[1].peer_id)
        started = trio.current_time()
        answer = await ask(swarm[0], completion(text(1)))
        assert answer.reply.route == "local"
        waited = trio.current_time() - started
        assert waited < PAPER.request.accept_timeout_s + PAPER.request.open_timeout_s
        again = await ask(swarm[0], completion(text(3)))
        assert again.reply.route == "local"
        assert trio.current_time() - started < waited + 1.0


async def test_a_bad_request_is_final_wherever_it_was_found(autojump_clock: MockClock) -> None:
    """The peer's engine refuses a parameter: the client gets the 400 that names it, nobody else is tried."""
    async with world(2, config=PAPER) as swarm:
        await _with_prefix_on_peer(swarm)
        for target in (swarm[0].peer_id, swarm[1].peer_id):
            with pytest.raises(RequestError) as caught:
                await ask(swarm[0], completion(text(1), logprobs=3, target=target))
            assert (caught.value.status, caught.value.param) == (400, "logprobs")
        assert (swarm[0].count("failed"), swarm[0].count("refused")) == (0, 2)


async def test_a_client_that_leaves_frees_the_peers_slot_and_the_stream_is_kept(
    autojump_clock: MockClock,
) -> None:
    """Design §7: leaving sends a cancel frame; the engine stops, mid-decode and mid-prefill."""
    async with world(2, config=PAPER) as swarm:
        for prompt, wait_s in ((text(1), 1.0), (text(2, 40_000), 0.5)):
            with trio.move_on_after(wait_s):
                incoming = completion(prompt, max_tokens=1000, target=swarm[1].peer_id)
                async with swarm[0].node.handle(incoming) as reply:
                    async for _ in reply.chunks:
                        pass
            await trio.sleep(0.01)
            load = swarm[1].engine.load()
            assert (load.running, load.queued, load.queued_prefill_tokens) == (0, 0, 0)
        assert (await ask(swarm[0], completion(text(3), target=swarm[1].peer_id))).text


async def test_a_node_whose_engine_loads_answers_through_its_peers_and_gets_nothing(
    autojump_clock: MockClock,
) -> None:
    """Situation: a node joins while its engine still loads."""
    async with world(2) as swarm:
        loading = await swarm.start(load_s=1000.0)
        while loading.state_of(swarm[0]) != "alive" or swarm[0].state_of(loading) != "loading":
            await trio.sleep(0.1)
        assert loading.node.ready
        answer = await ask(loading, completion(text(1)))
        assert answer.reply.route == "forwarded"
        for seed in range(10):
            assert (await ask(swarm[0], completion(text(seed)))).reply.served_by != loading.peer_id


async def test_with_nobody_to_serve_the_client_is_told_to_come_back(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = World(nursery, SimNetwork(), Config())
        alone = await swarm.start(load_s=1000.0)
        assert not alone.node.ready
        with pytest.raises(RequestError) as caught:
            await ask(alone, completion(text(1)))
        assert (caught.value.status, caught.value.code) == (503, "no_node_available")
        assert caught.value.retry_after_s is not None
        nursery.cancel_scope.cancel()


async def test_an_unknown_target_is_refused_by_name(autojump_clock: MockClock) -> None:
    async with world(1) as swarm:
        with pytest.raises(RequestError) as caught:
            await ask(swarm[0], completion(text(1), target=PeerId("nobody")))
        assert caught.value.param == "x-peerinfer-target"


async def test_an_overloaded_peer_refuses_in_one_round_trip_and_the_next_serves(
    autojump_clock: MockClock,
) -> None:
    """The peer has the last word: its queue is full, which node 0 does not know yet."""
    config = replace(PAPER, request=RequestConfig(queued_per_slot_max=1))
    async with world(2, config=config, slots=1, prefill_tokens_per_s=10.0) as swarm:
        await ask(swarm[1], completion(text(1), policy="local"))
        await swarm.all_know_all()
        async with trio.open_nursery() as nursery:
            for seed in (2, 3):
                nursery.start_soon(ask, swarm[1], completion(text(seed), policy="local"))
            await trio.lowlevel.checkpoint()
            started = trio.current_time()
            async with swarm[0].node.handle(completion(text(1), policy="longest-prefix")) as reply:
                assert reply.route == "local"
            decision = _decision(swarm[0], reply)
            assert decision["attempts"][0]["outcome"] == "overloaded"  # type: ignore[index]
            assert trio.current_time() - started < 60
            nursery.cancel_scope.cancel()


async def test_concurrent_cold_prompts_spread_over_the_swarm(autojump_clock: MockClock) -> None:
    """Situation: 64 concurrent requests, all counted at once; no node gets them all."""
    async with world(4, prefill_tokens_per_s=480.0) as swarm:
        served: list[PeerId] = []

        async def one(seed: int) -> None:
            served.append((await ask(swarm[0], completion(text(seed)))).reply.served_by)

        async with trio.open_nursery() as nursery:
            for seed in range(64):
                nursery.start_soon(one, seed)
        shares = {member.peer_id: served.count(member.peer_id) for member in swarm.members}
        assert min(shares.values()) >= 14
        assert max(shares.values()) <= 18


async def test_a_whole_answer_is_relayed_byte_for_byte_and_in_pieces(autojump_clock: MockClock) -> None:
    """Method: the peer's engine answers with more bytes than a node's frames may have."""
    whole = bytes(range(256)) * 5 * 4096

    @asynccontextmanager
    async def run_infer(request: InferRequest) -> AsyncIterator[AsyncIterator[Chunk | End]]:
        async def items() -> AsyncIterator[Chunk | End]:
            await trio.lowlevel.checkpoint()
            yield Chunk(sse_json=whole, text="all of it", whole=True)
            yield End(usage=Usage(prompt_tokens=1, completion_tokens=1), cached_tokens=0)

        assert json.loads(request.raw) == request.body
        yield items()

    async with world(2, config=PAPER) as swarm:
        swarm[1].engine.run_infer = run_infer  # type: ignore[method-assign,assignment]
        incoming = completion(text(1), target=swarm[1].peer_id)
        async with swarm[0].node.handle(incoming) as reply:
            chunks = [item async for item in reply.chunks if isinstance(item, Chunk)]
        assert all(chunk.whole and len(chunk.sse_json) <= WHOLE_PIECE_BYTES for chunk in chunks)
        assert len(chunks) == 5
        assert b"".join(chunk.sse_json for chunk in chunks) == whole
        assert "".join(chunk.text for chunk in chunks) == "all of it"


def _failing(error: Exception) -> Callable[[InferRequest], AbstractAsyncContextManager[object]]:
    """An engine's `run_infer` that fails before its first chunk."""

    @asynccontextmanager
    async def run_infer(request: InferRequest) -> AsyncIterator[AsyncIterator[Chunk | End]]:
        async def items() -> AsyncIterator[Chunk | End]:
            await trio.lowlevel.checkpoint()
            raise error
            yield  # makes this a generator

        yield items()

    return run_infer


def _counted(member: Member, run_infer: Callable[..., object], died: list[PeerId]) -> None:
    """The member's engine, noting who got to serve anything."""

    def counting(request: InferRequest) -> object:
        died.append(member.peer_id)
        return run_infer(request)

    member.engine.run_infer = counting  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize("first", ["here", "elsewhere"])
async def test_a_request_that_engines_die_of_does_not_go_through_the_swarm(
    autojump_clock: MockClock, first: str
) -> None:
    """Method: every engine of six fails at it. Two die, and the own one if it was not among them; however
    often the node is asked in one request, the others never see it."""
    async with world(6, config=PAPER) as swarm:
        if first == "elsewhere":
            await _with_prefix_on_peer(swarm, 1, 2, 3)
        died: list[PeerId] = []
        for member in swarm.members:
            _counted(member, _failing(EngineError("it died")), died)
        with pytest.raises(RequestError) as caught:
            await ask(swarm[0], completion(text(1)))
        assert (caught.value.status, caught.value.code) == (502, "engine_failed")
        assert len(died) == (2 if first == "here" else 3)
        assert died.count(swarm[0].peer_id) == 1


async def test_the_own_engine_serves_when_those_of_two_peers_are_broken(autojump_clock: MockClock) -> None:
    """Goal: two broken nodes do not fail the clients of a third. Method: more targets are allowed than that,
    and the own engine is the last of them; the peer in between is spared, and so is that retry."""
    config = replace(PAPER, request=RequestConfig(attempts_max=4, retry_share=10.0))
    async with world(5, config=config) as swarm:
        await _with_prefix_on_peer(swarm, 1, 2, 3)
        died: list[PeerId] = []
        for member in swarm.members[1:]:
            _counted(member, _failing(EngineError("it is broken")), died)
        budget = swarm[0].node.context.retry_budget
        saved = budget._saved
        answer = await ask(swarm[0], completion(text(1)))
        assert answer.reply.route == "local"
        assert len(died) == 2
        assert budget._saved == saved - 1
        outcomes = [attempt["outcome"] for attempt in _decision(swarm[0], answer.reply)["attempts"]]  # type: ignore[attr-defined]
        assert outcomes == ["failed", "failed", "served"]


async def test_without_an_own_engine_two_broken_ones_end_the_request_at_once(
    autojump_clock: MockClock,
) -> None:
    """It would wait for its own engine else, with a request that may kill it."""
    config = replace(PAPER, request=RequestConfig(attempts_max=4, retry_share=10.0))
    async with world(5, config=config) as swarm:
        await _with_prefix_on_peer(swarm, 1, 2, 3)
        for member in swarm.members:
            member.engine.run_infer = _failing(EngineError("it is broken"))  # type: ignore[method-assign,assignment]
        swarm[0].engine._set_state(EngineState.LOADING, "by the test")
        started = trio.current_time()
        with pytest.raises(RequestError) as caught:
            await ask(swarm[0], completion(text(1)))
        assert caught.value.code == "engine_failed"
        assert trio.current_time() - started < 1.0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (EngineAwayError("nobody listens"), "not_ready"),
        (RequestError("the queue is full", status=503, code="overloaded"), "overloaded"),
        (EngineError("it died"), "failed"),
    ],
)
async def test_an_engine_that_cannot_is_followed_by_the_next_best(
    autojump_clock: MockClock, error: Exception, outcome: str
) -> None:
    """At a peer and here, before the first chunk."""
    async with world(2, config=PAPER) as swarm:
        await _with_prefix_on_peer(swarm)
        here, peer = swarm[0].engine.run_infer, swarm[1].engine.run_infer
        swarm[1].engine.run_infer = _failing(error)  # type: ignore[method-assign,assignment]
        answer = await ask(swarm[0], completion(text(1)))
        assert _decision(swarm[0], answer.reply)["attempts"] == [
            {"peer_id": swarm[1].peer_id, "outcome": outcome},
            {"peer_id": swarm[0].peer_id, "outcome": "served"},
        ]
        await trio.sleep(5.0)  # a peer that refused is left alone for a while
        swarm[1].engine.run_infer = peer  # type: ignore[method-assign]
        swarm[0].engine.run_infer = _failing(error)  # type: ignore[method-assign,assignment]
        answer = await ask(swarm[0], completion(text(7)))
        assert _decision(swarm[0], answer.reply)["attempts"] == [
            {"peer_id": swarm[0].peer_id, "outcome": outcome},
            {"peer_id": swarm[1].peer_id, "outcome": "served"},
        ]
        swarm[0].engine.run_infer = here  # type: ignore[method-assign]
