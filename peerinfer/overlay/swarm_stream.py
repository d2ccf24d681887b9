"""The bytes of one connection below the handshake: encrypted with the swarm's key, and known by their start.

In a closed swarm everything is XOR'ed with XSalsa20 under the swarm's key (libp2p's private networks:
each side sends a random nonce of 24 bytes, then its stream; github.com/libp2p/specs, pnet). The cipher
proves nothing by itself, but both sides begin with the same known line, so a wrong key, a missing one or
another program shows with the first bytes, in place of a handshake that hangs on nonsense. An open swarm
checks that line as well. Behind it, Noise authenticates every byte.

What the library's own `PskConn` lacks: the nonce of the standard, reading it in pieces, an end to waiting.

Behind the greeting it reads ahead: the layers above ask for a length of two bytes, then for the message, and
each question was a system call and a turn of the loop. A connection has one task that reads and one at a
time that writes, so both go straight to the socket, which nearly always has room.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import trio
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError, IOException

from peerinfer.core.swarm_key import SwarmKey
from peerinfer.overlay.xsalsa20 import NONCE_BYTES, xsalsa20

GREETING = b"\x13/multistream/1.0.0\n"
"""What every libp2p node sends first, before any handshake."""
AHEAD_BYTES = 64 * 1024
"""Read at once at most; a Noise message is no longer."""
NO_MEMBER = "wrong or missing swarm key, or not a peerinfer node"


class NotAMemberError(IOException):
    """The other side has not this swarm's key, or does not speak libp2p at all."""


class SwarmStream(ReadWriteCloser):
    """The connection's own stream, with this between it and the handshake."""

    def __init__(self, stream: Any, *, key: SwarmKey | None, greeted_within_s: float) -> None:
        self._stream = stream
        self._key = key
        self._deadline = trio.current_time() + greeted_within_s
        self._greeted_within_s = greeted_within_s
        self._awaited = GREETING
        self._encrypt: Callable[[bytes], bytes] | None = None
        self._decrypt: Callable[[bytes], bytes] | None = None
        self._socket: Any = getattr(getattr(stream, "stream", None), "socket", None)
        """None where it is relayed."""
        self._ahead = b""
        self._taken = 0
        """Of what was read ahead."""

    async def write(self, data: bytes) -> None:
        """Send, the first time behind the nonce and in one piece with it."""
        if self._key is not None:
            if self._encrypt is None:
                nonce = os.urandom(NONCE_BYTES)
                self._encrypt = xsalsa20(self._key.secret, nonce)
                data = nonce + self._encrypt(data)
            else:
                data = self._encrypt(data)
        sent = self._send_now(data)
        if sent < len(data):
            await self._stream.write(data[sent:])

    async def read(self, n: int | None = None) -> bytes:
        """Up to `n` bytes, decrypted.

        Raises:
            NotAMemberError: the first bytes are not what a member sends, or do not come.
        """
        if self._awaited:
            return await self._read_greeting(n)
        if self._taken == len(self._ahead):
            data = await self._receive()
            self._ahead = self._decrypt(data) if self._decrypt is not None else data
            self._taken = 0
        begin = self._taken
        self._taken = len(self._ahead) if n is None else min(len(self._ahead), begin + n)
        return self._ahead[begin : self._taken]

    async def close(self) -> None:
        """Close the connection."""
        await self._stream.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        """Where the other side is."""
        address: tuple[str, int] | None = self._stream.get_remote_address()
        return address

    def _send_now(self, data: bytes) -> int:
        """Send what the socket takes at once; how much that was. What fails shows in the library's write."""
        if self._socket is None:
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except OSError:
            return 0

    async def _receive(self) -> bytes:
        if self._socket is None:
            data: bytes = await self._stream.read(AHEAD_BYTES)
            return data
        while True:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                return os.read(self._socket.fileno(), AHEAD_BYTES)
            except BlockingIOError:
                continue  # somebody else's wake-up; nothing came
            except trio.ClosedResourceError:
                return b""
            except OSError as error:
                raise ConnectionClosedError(f"the connection broke: {error}", transport="tcp") from error

    async def _read_greeting(self, n: int | None) -> bytes:
        with trio.move_on_at(self._deadline):
            if self._key is not None and self._decrypt is None:
                self._decrypt = xsalsa20(self._key.secret, await self._read_nonce())
            data: bytes = await self._stream.read(n)
            if self._decrypt is not None:
                data = self._decrypt(data)
            if not data:
                raise NotAMemberError(f"it closed the connection: {NO_MEMBER}")
            expected, self._awaited = self._awaited[: len(data)], self._awaited[len(data) :]
            if not data.startswith(expected):
                raise NotAMemberError(NO_MEMBER)
            return data
        raise NotAMemberError(f"no handshake within {self._greeted_within_s:g} s: {NO_MEMBER}")

    async def _read_nonce(self) -> bytes:
        nonce = b""
        while len(nonce) < NONCE_BYTES:
            piece = await self._stream.read(NONCE_BYTES - len(nonce))
            if not piece:
                raise NotAMemberError(f"it closed the connection: {NO_MEMBER}")
            nonce += piece
            if nonce.startswith(GREETING):  # in the clear, and so much the sooner told
                raise NotAMemberError(NO_MEMBER)
        return nonce
