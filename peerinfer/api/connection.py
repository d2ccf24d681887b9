"""One client's connection: hypercorn's HTTP/1.1 over a socket that can be closed at any time.

Hypercorn's own TCP server shields sends from cancellation without a time limit, sends while it closes,
and keeps a connection's tasks when one of them fails. A client that stopped reading would stop the node
from ending, and hold an engine's slot. So sends end with the socket or after a time, and one that fails
ends everything on the connection at once. `ClientStream` also sees hypercorn's answers to bytes that are
not HTTP, which never reach the application. HTTP/2 is not offered: without TLS no client needs it, and
hypercorn's upgrade to it fails on garbage with a traceback.

One thing stays hypercorn's: while a client has sent its next request ahead of an answer, the socket is
not read, so that client's leaving is noticed with the next bytes to it.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from contextlib import suppress

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Body, Response
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

from peerinfer.api.errors import error_headers, error_json, shutting_down

SEND_TIMEOUT_S = 60.0  # guess
"""A client that takes nothing for this long is gone."""

KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds, seconds, probes: a client whose machine vanished is noticed within 30 s."""

HEAD = b"HTTP/1.1 "
INFORMATION = b"HTTP/1.1 1"
REFUSAL = b"HTTP/1.1 4"
NO_BODY = b"\r\ncontent-length: 0\r\n"
"""Together they tell hypercorn's own error responses: those of the application have a body."""
NO_LENGTH = (b"content-length", b"0")
"""Likewise, before the response became bytes."""


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
        self._sending = False
        self._head = b""
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
        """Send, or raise `trio.BrokenResourceError` once the client is given up.

        A response's head waits for what follows it, one send and one packet for both; after the last
        piece hypercorn sends nothing (`b""`), so no head is left behind. The socket's buffer nearly
        always has room, so it is tried first, without trio's bookkeeping.
        """
        if self._closing:
            raise trio.BrokenResourceError
        if data.startswith(HEAD) and not (self._head or data.startswith(INFORMATION)):
            if data.startswith(REFUSAL) and NO_BODY in data:
                self._on_garbage()
            self._head = data
            return
        data, self._head = self._head + data, b""
        if not data:
            return
        if self._sending:  # The client broke the protocol while it was answered.
            self.abort()
            raise trio.BrokenResourceError
        try:
            sent = os.write(self.socket.fileno(), data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.abort()
            raise trio.BrokenResourceError from None
        if sent == len(data):
            await trio.lowlevel.checkpoint()
        else:
            await self._send_slowly(data[sent:])

    async def _send_slowly(self, data: bytes) -> None:
        """Send as the client takes it."""
        self._sending = True
        try:
            with trio.fail_after(SEND_TIMEOUT_S):
                await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            self.abort()
            raise trio.BrokenResourceError from None
        finally:
            self._sending = False

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

    async def protocol_send(self, event: Event) -> None:
        """Send what the protocol has to say: hypercorn's way, but neither shielded nor behind a lock."""
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        try:
            await self._client.send_all(event.data)
        except trio.BrokenResourceError:
            await self.protocol.handle(Closed())


class Http1(H11Protocol):
    """HTTP/1.1 that stays what it is: an offer to upgrade to HTTP/2 is ignored, as RFC 9110 allows.

    It also says what is true where hypercorn would say 500: that the application was cancelled, before
    it answered, by the end of the node.
    """

    async def stream_send(self, event: StreamEvent) -> None:
        """Send what the application, or hypercorn in its place, has to say."""
        is_failure = isinstance(event, Response) and event.status_code == 500 and NO_LENGTH in event.headers
        if not is_failure or trio.current_effective_deadline() > -math.inf:
            await super().stream_send(event)
            return
        error = shutting_down()
        body = error_json(error)
        headers = error_headers(error, body, [(b"connection", b"close")])
        await super().stream_send(Response(event.stream_id, headers, error.status))
        await super().stream_send(Body(event.stream_id, body))

    async def _check_protocol(self, _event: object) -> None:
        return
