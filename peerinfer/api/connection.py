"""One client's connection: hypercorn's HTTP/1.1 over a socket that can be closed at any time.

Hypercorn's TCP server shields its sends from cancellation, sends while it closes, and keeps a
connection's tasks when one of them fails. So `ClientStream` closes its socket to end a send (a client
that stopped reading must neither stop the node nor hold an engine's slot), and a send that fails ends
everything on the connection at once. It also sees hypercorn's answers to bytes that are not HTTP, which
never reach the application. HTTP/2 is not offered: without TLS no client needs it, and hypercorn's
upgrade to it fails on garbage with a traceback.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

SEND_TIMEOUT_S = 60.0  # guess
"""A client that takes nothing for this long is gone."""

KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds, seconds, probes: a client whose machine vanished is noticed within 30 s."""

REFUSAL = b"HTTP/1.1 4"
NO_BODY = b"\r\ncontent-length: 0\r\n"
"""Together they tell hypercorn's own error responses: those of the application have a body."""


class ClientStream:
    """What hypercorn needs of a stream, over a socket that can be closed at any time."""

    def __init__(
        self, stream: trio.SocketStream, scope: trio.CancelScope, on_garbage: Callable[[], None]
    ) -> None:
        self.socket = stream.socket
        self._stream = stream
        self._scope = scope
        self._on_garbage = on_garbage
        self._closing = False
        with suppress(OSError):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE:
                if hasattr(socket, name):
                    stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def abort(self) -> None:
        """Close the connection and cancel all that is done for it, now."""
        self.socket.close()
        self._scope.cancel()

    async def send_all(self, data: bytes) -> None:
        """Send, or raise `trio.BrokenResourceError` once the client is given up."""
        if self._closing:
            raise trio.BrokenResourceError
        if data.startswith(REFUSAL) and NO_BODY in data:
            self._on_garbage()
        try:
            with trio.fail_after(SEND_TIMEOUT_S):
                await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            self.abort()
            raise trio.BrokenResourceError from None

    async def receive_some(self, bytes_max: int) -> bytes | bytearray:
        """The next bytes; empty once the client has closed its side."""
        data = await self._stream.receive_some(bytes_max)
        if not data:
            self._closing = True
        return data

    async def send_eof(self) -> None:
        """Nothing more will be sent."""
        self._closing = True
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the socket."""
        await self._stream.aclose()


class Connection(TCPServer):
    """Hypercorn's server of one connection, without its TLS and its HTTP/2."""

    def __init__(self, app: AppWrapper, config: HypercornConfig, stream: ClientStream) -> None:
        super().__init__(app, config, WorkerContext(None), ConnectionState({}), stream)  # type: ignore[arg-type]
        self._client = stream

    async def run(self) -> None:
        """Serve requests until either side closes."""
        sock = self._client.socket
        try:
            async with TaskGroup() as tasks:
                self._task_group = tasks
                self.protocol = Http1(  # type: ignore[assignment]
                    self.app,
                    self.config,
                    self.context,
                    tasks,
                    ConnectionState({}),
                    False,
                    parse_socket_addr(sock.family, sock.getpeername()),
                    parse_socket_addr(sock.family, sock.getsockname()),
                    self.protocol_send,
                )
                await self.idle_task.restart(tasks, self._idle_timeout)
                await self._read_data()
                # Else a connection that its client closed would stay until the keep-alive timeout.
                await self.idle_task.stop()
        except OSError:
            pass  # The client was gone before its first byte.
        finally:
            await self._close()


class Http1(H11Protocol):
    """HTTP/1.1 that stays what it is: an offer to upgrade to HTTP/2 is ignored, as RFC 9110 allows."""

    async def _check_protocol(self, _event: object) -> None:
        return
