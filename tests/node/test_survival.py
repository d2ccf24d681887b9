"""Answers that outlive whoever gives them, on a swarm in virtual time.

The oracle: the simulated engine is greedy and its next token depends on all tokens before it, so the stream
of a request whose engines die must equal that of a run in which nothing happened, chunk by chunk.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from peerinfer.api.assemble import Assembler, usage_json
from peerinfer.config import Config, RoutingConfig
from peerinfer.core.types import Chunk, End, InferRequest, RequestError
from peerinfer.node.ports import EngineError
from peerinfer.node.reply import Incoming
from tests.node.answers import SHAPES, read, shaped, taught, undisturbed
from tests.node.swarm import Member, World, world

PAPER = Config(routing=RoutingConfig(policy="longest-prefix"))


def _server_of(swarm: World, incoming: Incoming, entry: Member) -> Member | None:
    """The peer that works on a request now; None if that is the entry node."""
    for member in swarm.members:
        decision = member.node.decision(incoming.id)
        if member is not entry and decision is not None and decision["duration_s"] is None:
            return member
    return None


def _without_tokens(swarm: World) -> None:
    """As servers behind HTTP do: no token ids."""
    for member in swarm.members:
        member.engine.run_infer = _stripped(member.engine.run_infer)  # type: ignore[method-assign]


def _stripped(run_infer):  # type: ignore[no-untyped-def]
    @asynccontextmanager
    async def stripped(request: InferRequest):  # type: ignore[no-untyped-def]
        assert not request.answered_token_ids
        async with run_infer(request) as items:

            async def without() -> AsyncIterator[Chunk | End]:
                async for item in items:
                    yield replace(item, token_ids=None) if isinstance(item, Chunk) else item

            yield without()

    return stripped


# Text cannot be put behind a prompt of tokens.
@pytest.mark.parametrize(
    ("name", "told"),
    [(name, told) for name in SHAPES for told in ("tokens", "text") if (name, told) != ("tokens", "text")],
)
async def test_a_stream_whose_peer_dies_equals_an_undisturbed_one(
    autojump_clock: MockClock, name: str, told: str
) -> None:
    """Its peer dies after any number of chunks; words with letters of two tokens lie on some of the seams."""
    moved = 0
    async with world(2, config=PAPER) as swarm:
        for after in range(1, 42, 5 if told == "text" else 3):
            incoming = shaped(name, after)
            alone = await undisturbed(incoming)
            if told == "text":
                _without_tokens(swarm)
            await taught(swarm, incoming)

            async def die(chunks: int, after: int = after) -> None:
                if chunks == after:
                    swarm.crash(swarm[1])

            seen = await read(swarm[0], incoming, die)
            assert seen.served_by[0] == swarm[1].peer_id
            assert seen.stream() == alone.stream()
            assert seen.counts == alone.counts
            moved += seen.served_by[1:] == [swarm[0].peer_id]
            swarm.crash(swarm[1])
            await swarm.start(1)
            await swarm.all_know_all()
    assert moved >= 3


async def test_a_stream_goes_through_as_many_deaths_as_there_are(autojump_clock: MockClock) -> None:
    """Whoever serves dies after every fourth chunk, the own engine too; nothing is doubled or lost."""
    incoming = shaped("chat", 1)
    alone = await undisturbed(incoming)
    async with world(4, config=PAPER) as swarm:
        await taught(swarm, incoming)

        async def die(chunks: int) -> None:
            if chunks % 4 == 0:
                peer = _server_of(swarm, incoming, swarm[0]) or swarm[0]
                peer.engine.crash(down_s=0.2)

        seen = await read(swarm[0], incoming, die)
        assert seen.stream() == alone.stream()
        assert seen.counts == alone.counts
        assert len(set(seen.served_by)) >= 3
        assert swarm[0].count("failed") == 0


async def test_a_stop_string_across_the_seam_ends_the_stream_where_it_would_have(
    autojump_clock: MockClock,
) -> None:
    """Every place for a seam, before the stop string, within it, and after its last letter was drawn."""
    async with world(2, config=PAPER) as swarm:
        for after in range(1, 30):
            whole = await undisturbed(shaped("chat", after))
            incoming = shaped("chat", after, stop=[whole.text[14:22]])
            alone = await undisturbed(incoming)
            assert alone.text == whole.text[:14]
            await taught(swarm, incoming)
            async with trio.open_nursery() as nursery:

                async def die(after: int = after) -> None:
                    await trio.sleep(0.015 + after / 200)  # a token takes 1/200 s
                    swarm.crash(swarm[1])

                nursery.start_soon(die)
                seen = await read(swarm[0], incoming)
                nursery.cancel_scope.cancel()
            assert seen.stream() == alone.stream()
            assert seen.counts == alone.counts
            swarm.crash(swarm[1])
            await swarm.start(1)
            await swarm.all_know_all()


async def test_an_answer_that_is_not_streamed_survives_too(autojump_clock: MockClock) -> None:
    """Put together as for the client, it is the undisturbed one."""
    incoming = shaped("chat", 1, stream=False)
    answers = []
    for disturbed in (False, True):
        async with world(2, config=PAPER) as swarm:
            await taught(swarm, incoming)

            async def die(chunks: int, swarm: World = swarm, disturbed: bool = disturbed) -> None:
                if disturbed and chunks == 10:
                    swarm.crash(swarm[1])

            seen = await read(swarm[0], incoming, die)
            assert len(seen.served_by) == 1 + disturbed
            pieces = Assembler("chat", request_id="r", model="simulated")
            for chunk in seen.chunks:
                pieces.add(chunk.sse_json)
            whole = json.loads(pieces.whole(usage_json(seen.counts, 0)))
            answers.append((whole["choices"], whole["usage"], whole["object"]))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_text_does_not_carry_ends_in_a_named_error_or_begins_anew(
    autojump_clock: MockClock, streamed: bool
) -> None:
    """A grammar's state is in the engine that died. A client that has seen nothing gets a whole answer of
    another one; one that has seen a part of it is told why there is no more, and no token came twice."""
    async with world(2, config=PAPER) as swarm:
        for member in swarm.members:
            member.engine.run_infer = _with_grammar(member.engine.run_infer)  # type: ignore[method-assign]
        incoming = shaped("chat", 1, stream=streamed, response_format={"type": "json_object"})
        await taught(swarm, incoming)
        chunks = 0

        async def die() -> None:
            await trio.sleep(0.1)
            swarm.crash(swarm[1])

        async def note(so_far: int) -> None:
            nonlocal chunks
            chunks = so_far

        async with trio.open_nursery() as nursery:
            nursery.start_soon(die)
            if streamed:
                with pytest.raises(RequestError, match="response_format") as caught:
                    await read(swarm[0], incoming, note)
                assert (caught.value.code, caught.value.status) == ("stream_broken", 502)
                assert 0 < chunks < 30
                assert swarm[0].count("failed") == 1
            else:
                seen = await read(swarm[0], incoming, note)
                alone = await undisturbed(shaped("chat", 1))
                assert seen.text == alone.text
                assert seen.served_by == [swarm[1].peer_id, swarm[0].peer_id]


def _with_grammar(run_infer):  # type: ignore[no-untyped-def]
    """An engine that takes `response_format`, as SGLang does."""

    @asynccontextmanager
    async def taking(request: InferRequest):  # type: ignore[no-untyped-def]
        body = {key: value for key, value in request.body.items() if key != "response_format"}
        async with run_infer(replace(request, body=body)) as items:
            yield items

    return taking


async def test_a_request_that_engines_die_of_later_is_not_tried_for_ever(autojump_clock: MockClock) -> None:
    """Every engine dies at the same token: the first had brought some, two more try, then it is over."""
    async with world(4, config=PAPER) as swarm:
        incoming = shaped("chat", 1)
        died: list[str] = []

        def dying(member: Member, run_infer):  # type: ignore[no-untyped-def]
            @asynccontextmanager
            async def run(request: InferRequest):  # type: ignore[no-untyped-def]
                async with run_infer(request) as items:

                    async def some() -> AsyncIterator[Chunk | End]:
                        left = 5 - len(request.answered_token_ids)
                        async for item in items:
                            if left <= 0:
                                died.append(member.peer_id)
                                raise EngineError("it died")
                            left -= 1
                            yield item

                    yield some()

            return run

        await taught(swarm, incoming)
        for member in swarm.members:
            member.engine.run_infer = dying(member, member.engine.run_infer)  # type: ignore[method-assign]
        with pytest.raises(RequestError) as caught:
            await read(swarm[0], incoming)
        assert caught.value.code == "engine_failed"
        assert len(died) == 3
