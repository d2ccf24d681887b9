"""Below the handshake: a member is understood however its bytes are cut, a stranger is told at once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import trio

from peerinfer.core.swarm_key import SwarmKey
from peerinfer.overlay.swarm_stream import GREETING, NO_MEMBER, NotAMemberError, SwarmStream
from peerinfer.overlay.xsalsa20 import xsalsa20

KEY, OTHER = SwarmKey(b"k" * 32), SwarmKey(b"o" * 32)
WITHIN_S = 2.0


class Wire:
    """A connection's stream: gives the pieces that it was made with, keeps what is written."""

    def __init__(self, pieces: Iterable[bytes], *, ends: bool = True) -> None:
        self._pieces = list(pieces)
        self._ends = ends
        self.written: list[bytes] = []

    async def read(self, n: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._pieces:
            if not self._ends:
                await trio.sleep_forever()
            return b""
        piece = self._pieces.pop(0)
        if n is not None and len(piece) > n:
            piece, rest = piece[:n], piece[n:]
            self._pieces.insert(0, rest)
        return piece

    async def write(self, data: bytes) -> None:
        self.written.append(data)


def stream(wire: Wire, key: SwarmKey | None) -> SwarmStream:
    return SwarmStream(wire, key=key, greeted_within_s=WITHIN_S)


async def sent(key: SwarmKey | None, *messages: bytes) -> list[bytes]:
    """What a member puts on the wire."""
    wire = Wire([])
    member = stream(wire, key)
    for message in messages:
        await member.write(message)
    return wire.written


async def read_all(reader: SwarmStream, n: int | None = None) -> bytes:
    data = b""
    while piece := await reader.read(n):
        data += piece
    return data


async def read_greeting(reader: SwarmStream) -> None:
    for _ in range(len(GREETING)):
        await reader.read(1)


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize("cut", [1, 7, 1000])
@pytest.mark.parametrize("n", [1, 20, None])
async def test_a_member_is_read_however_its_bytes_are_cut(
    key: SwarmKey | None, cut: int, n: int | None
) -> None:
    wire = b"".join(await sent(key, GREETING, b"and then", b" more" * 10))
    reader = stream(Wire(wire[at : at + cut] for at in range(0, len(wire), cut)), key)
    assert await read_all(reader, n) == GREETING + b"and then" + b" more" * 10


async def test_the_wire_is_that_of_the_standard() -> None:
    """24 bytes of nonce in one piece with the first message, then XSalsa20: go-libp2p's pnet reads this."""
    first, second = await sent(KEY, GREETING, b"next")
    decrypt = xsalsa20(KEY.secret, first[:24])
    assert decrypt(first[24:]) + decrypt(second) == GREETING + b"next"
    assert (await sent(KEY, GREETING))[0][:24] != first[:24]
    assert await sent(None, GREETING) == [GREETING]


@pytest.mark.parametrize(("ours", "theirs"), [(KEY, OTHER), (KEY, None), (None, KEY)])
async def test_another_key_or_none_is_told_with_the_first_bytes(
    ours: SwarmKey | None, theirs: SwarmKey | None
) -> None:
    """Method: the other side says no more than its first line and stays; waiting for more would hang."""
    reader = stream(Wire(await sent(theirs, GREETING), ends=False), ours)
    with trio.fail_after(1), pytest.raises(NotAMemberError, match=f"^{NO_MEMBER}$"):
        await read_greeting(reader)


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize("said", [[], [GREETING[:1]]])
async def test_who_says_too_little_is_told_in_time(
    key: SwarmKey | None, said: list[bytes], autojump_clock: trio.testing.MockClock
) -> None:
    reader = stream(Wire(said, ends=False), key)
    with pytest.raises(NotAMemberError):
        await read_greeting(reader)
    assert trio.current_time() <= WITHIN_S


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize("said", [[], [b"\x13"], [bytes(30)]])
async def test_who_leaves_before_its_greeting_is_no_member(key: SwarmKey | None, said: list[bytes]) -> None:
    with pytest.raises(NotAMemberError, match=NO_MEMBER):
        await read_all(stream(Wire(said), key), 1)


@pytest.mark.parametrize("key", [None, KEY])
async def test_small_reads_cost_no_reads_of_the_wire(key: SwarmKey | None) -> None:
    """Messages are asked for length first; what is on the wire already is read once."""
    wire = Wire([b"".join(await sent(key, GREETING, b"x" * 1000))])
    reader = stream(wire, key)
    await read_greeting(reader)
    first = await reader.read(2)
    assert wire._pieces == []
    assert first + await read_all(reader, 7) == b"x" * 1000
