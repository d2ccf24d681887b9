"""A client's socket: sends that end with it or after a time, and reads that nothing can lose.

A client that stopped reading must neither keep the node from ending nor hold an engine's slot: a send that
fails, or that takes too long, ends everything that is done for this client, at once.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import trio

SEND_TIMEOUT_S = 60.0  # guess
"""A client that takes nothing for this long is gone."""
READ_BYTES = 64 * 1024
LINGER_S = 1.0  # guess
"""How long a client that sends no HTTP may take to read why it is cut off."""
KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds, seconds, probes: a client whose machine vanished is noticed within 30 s."""


class ClientSocket:
    """One client; `scope` is around everything that is done for it."""

    def __init__(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        self._stream = stream
        self._socket = stream.socket
        self._scope = scope
        with suppress(OSError):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE:
                if hasattr(socket, name):
                    stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    async def receive(self) -> bytes:
        """The next bytes; empty once the client has closed its side, or is gone."""
        while True:
            try:
                # A request is hardly ever there already: trio's own way would try, fail, and then wait.
                await trio.lowlevel.wait_readable(self._socket)
                return os.read(self._socket.fileno(), READ_BYTES)
            except BlockingIOError:
                continue
            except (trio.ClosedResourceError, OSError):
                return b""

    async def send(self, data: bytes) -> None:
        """Send everything; a client that cannot be sent to is given up.

        The socket's buffer nearly always has room, so it is tried first, without trio's bookkeeping.
        """
        sent = self.send_now(data)
        if sent == len(data):
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        try:
            with trio.fail_after(SEND_TIMEOUT_S):
                await self._stream.send_all(data[sent:])
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            await self._give_up()

    def send_now(self, data: bytes) -> int:
        """Send what the socket takes at once; how much that was. What fails shows in the next send."""
        try:
            return os.write(self._socket.fileno(), data)
        except OSError:
            return 0

    async def linger(self) -> None:
        """Say that nothing more comes, and let the client read: a close on unread bytes is a reset."""
        with trio.move_on_after(LINGER_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._stream.send_eof()
            while await self._stream.receive_some(READ_BYTES):
                pass

    def close(self) -> None:
        """Close it now."""
        self._socket.close()

    async def _give_up(self) -> None:
        self.close()
        self._scope.cancel()
        await trio.lowlevel.checkpoint()
