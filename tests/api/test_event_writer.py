"""Events that come together go out together, in order, and none is held back."""

from __future__ import annotations

import trio
import trio.testing

from peerinfer.api.event_writer import COLLECTED_BYTES_MAX, EventWriter


class Client:
    """Takes what is sent, when it may."""

    def __init__(self) -> None:
        self.sends: list[bytes] = []
        self.reads = trio.Event()
        self.reads.set()

    async def send(self, data: bytes) -> None:
        await self.reads.wait()
        self.sends.append(data)


async def test_what_comes_together_is_one_send(nursery: trio.Nursery) -> None:
    client = Client()
    writer = EventWriter(client.send)
    nursery.start_soon(writer.run)
    for event in (b"a", b"b", b"c"):
        await writer.write(event)
    await trio.testing.wait_all_tasks_blocked()
    await writer.write(b"d")
    await trio.testing.wait_all_tasks_blocked()
    assert client.sends == [b"abc", b"d"]


async def test_rest_waits_for_what_is_on_its_way(nursery: trio.Nursery) -> None:
    """Else the last events could overtake those before them."""
    client = Client()
    client.reads = trio.Event()
    writer = EventWriter(client.send)
    nursery.start_soon(writer.run)
    await writer.write(b"a")
    await trio.testing.wait_all_tasks_blocked()
    await writer.write(b"b")
    rest: list[bytes] = []

    async def ask() -> None:
        rest.append(await writer.rest())

    nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked()
    assert rest == []
    client.reads.set()
    await trio.testing.wait_all_tasks_blocked()
    assert b"".join(client.sends + rest) == b"ab"


async def test_slow_client_bounds_what_is_collected(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Whoever brings events waits, until the client reads on."""
    client = Client()
    client.reads = trio.Event()
    writer = EventWriter(client.send)
    nursery.start_soon(writer.run)
    written = 0

    async def bring() -> None:
        nonlocal written
        for _ in range(40):
            await writer.write(b"x" * 100_000)
            written += 100_000

    nursery.start_soon(bring)
    await trio.sleep(1)
    assert written <= 2 * COLLECTED_BYTES_MAX + 200_000
    client.reads.set()
    await trio.sleep(1)
    assert sum(map(len, client.sends)) == 4_000_000
