"""The proxy between nodes: who connects is found, and what is cut is cut, until it heals."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio

from tests.chaos.proxy import Cuts, Proxy, process_of

SOON_S = 10.0
NOT_YET_S = 0.1


@asynccontextmanager
async def echo_behind(cuts: Cuts) -> AsyncIterator[Callable[[], trio.abc.AsyncResource]]:
    """A node `b` that echoes, behind its proxy; gives what connects to it as node `a`."""

    async def echo(stream: trio.SocketStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, echo, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        proxy = Proxy("b", port, cuts=cuts, who=lambda local: process_of(local, {"a": os.getpid()}))
        proxied = await nursery.start(proxy.serve)
        yield partial(trio.open_tcp_stream, "127.0.0.1", proxied)  # type: ignore[misc]
        nursery.cancel_scope.cancel()


async def test_who_connects_is_found_by_its_process() -> None:
    """Method: a connection of this very process, once named and once not among the names."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with await trio.open_tcp_stream(*listeners[0].socket.getsockname()) as stream:
        port = stream.socket.getsockname()[1]
        assert process_of(port, {"init": 1, "me": os.getpid()}) == "me"
        assert process_of(port, {"gone": 2**22 + 1}) is None
    await listeners[0].aclose()


async def test_a_silent_link_holds_back_what_is_said_until_it_heals() -> None:
    """Method: one way is silent, from b: what a says arrives, and no echo comes before it heals."""
    cuts = Cuts()
    async with echo_behind(cuts) as connect, await connect() as stream, trio.open_nursery() as nursery:  # type: ignore[misc]
        await stream.send_all(b"one")
        with trio.fail_after(SOON_S):
            assert await stream.receive_some() == b"one"
        nursery.start_soon(partial(cuts.silence, "b", "a", for_s=SOON_S, one_way=True))
        await trio.testing.wait_all_tasks_blocked()
        assert cuts.between("a", "b")
        await stream.send_all(b"two")
        with trio.move_on_after(NOT_YET_S) as waited:
            await stream.receive_some()
        assert waited.cancelled_caught
        nursery.cancel_scope.cancel()
    assert not cuts.between("a", "b")


async def test_what_was_held_back_arrives_once_a_link_heals() -> None:
    cuts = Cuts()
    async with echo_behind(cuts) as connect, await connect() as stream:  # type: ignore[misc]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(cuts.silence, "a", "b", for_s=SOON_S, one_way=False))
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(b"late")
            nursery.cancel_scope.cancel()
        with trio.fail_after(SOON_S):
            assert await stream.receive_some() == b"late"


async def test_a_severed_link_breaks_and_lets_no_new_one_come_up() -> None:
    """Method: a connection from before, one while it lasts, one after; and that of others is left alone."""
    cuts = Cuts()
    async with echo_behind(cuts) as connect, await connect() as before:  # type: ignore[misc]
        await before.send_all(b"one")
        assert await before.receive_some() == b"one"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(cuts.sever, "a", "b", for_s=SOON_S))
            with trio.fail_after(SOON_S):
                assert await before.receive_some() == b""
                async with await connect() as during:  # type: ignore[misc]
                    assert await during.receive_some() == b""
            nursery.cancel_scope.cancel()
        async with await connect() as after:  # type: ignore[misc]
            await after.send_all(b"two")
            with trio.fail_after(SOON_S):
                assert await after.receive_some() == b"two"
