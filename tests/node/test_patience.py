"""How long an answer waits for an engine that says nothing, is away, or comes back, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from peerinfer.config import Config, RoutingConfig
from peerinfer.core.types import Chunk, End, EngineState, InferRequest, RequestError
from tests.node.answers import read, shaped, taught, undisturbed
from tests.node.swarm import world

PAPER = Config(routing=RoutingConfig(policy="longest-prefix"))


async def test_a_silent_engine_is_followed_by_another_before_and_after_its_first_token(
    autojump_clock: MockClock,
) -> None:
    """The peer lives and beats, but its engine says nothing any more: the first token may take a multiple of
    what was predicted, each further one `token_timeout_s`."""
    for after in (0, 5):
        incoming = shaped("chat", 1)
        alone = await undisturbed(incoming)
        async with world(2, config=PAPER) as swarm:
            await taught(swarm, incoming)
            run_infer = swarm[1].engine.run_infer

            def hanging(run_infer, after: int):  # type: ignore[no-untyped-def]
                @asynccontextmanager
                async def run(request: InferRequest):  # type: ignore[no-untyped-def]
                    async with run_infer(request) as items:

                        async def some() -> AsyncIterator[Chunk | End]:
                            for _ in range(after):
                                yield await anext(items)
                            await trio.sleep_forever()

                        yield some()

                return run

            swarm[1].engine.run_infer = hanging(run_infer, after)  # type: ignore[method-assign]
            started = trio.current_time()
            seen = await read(swarm[0], incoming)
            waited = trio.current_time() - started
            assert seen.stream() == alone.stream()
            assert seen.served_by == [swarm[1].peer_id, swarm[0].peer_id]
            limits = Config().request
            expected = limits.token_timeout_s if after else limits.first_token_s_min
            assert expected < waited < expected + 5.0
            assert swarm[1].engine.load().running == 0, "it was told to stop"


async def test_an_answer_waits_for_somebody_to_go_on(autojump_clock: MockClock) -> None:
    """The only engine there is crashes in the middle and is back after some seconds."""
    incoming = shaped("chat", 1)
    alone = await undisturbed(incoming)
    async with world(1) as swarm:
        await trio.sleep(1.0)

        async def die(chunks: int) -> None:
            if chunks == 10:
                swarm[0].engine.crash(down_s=Config().request.patience_s - 5.0)

        assert (await read(swarm[0], incoming, die)).stream() == alone.stream()
        impatient = shaped("chat", 2)

        async def die_for_long(chunks: int) -> None:
            if chunks == 10:
                swarm[0].engine.crash(down_s=Config().request.patience_s + 5.0)

        with pytest.raises(RequestError) as caught:
            await read(swarm[0], impatient, die_for_long)
        assert caught.value.code == "no_node_available"


async def test_a_node_whose_engine_fails_waits_for_it_to_come_back(autojump_clock: MockClock) -> None:
    """Goal: no client is turned away for what passes. Method: nobody else is there, and it takes 5 s."""
    async with world(1) as swarm, trio.open_nursery() as nursery:
        engine = swarm[0].engine
        engine._set_state(EngineState.FAILING, "nobody listens")
        assert not swarm[0].node.ready

        async def come_back() -> None:
            await trio.sleep(5.0)
            engine._set_state(EngineState.READY, "it answers")

        nursery.start_soon(come_back)
        assert (await read(swarm[0], shaped("chat", 3))).served_by == [swarm[0].peer_id]
