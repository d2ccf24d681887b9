"""HTTP/1.1 to one's own engine, with as little between it and the socket as there can be.

Why not httpx, which the rest of the node uses: a request through it took a quarter of the node's CPU time,
more than all of the routing (measured: docs/performance.md). What an engine's server needs is little: POST
and GET with a known length, and a response that is framed by a length, by chunks or by its end. Bodies are
given as they come in, several chunks of the server's at once if they came at once.

A connection serves one request after the other and is kept for a moment in between. Leaving a response
before its end closes its connection, which is how a server learns that nobody reads any more. Where a kept
connection turns out to be dead before a byte of the response came, the request is sent once more on a new
one: the server was restarting, or had just closed it.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import trio

CONNECT_TIMEOUT_S = 5.0
KEPT_MAX = 64
KEPT_S = 2.0
"""Shorter than uvicorn's 5 s: a connection that the server is just closing would fail a request."""
HEAD_BYTES_MAX = 64 * 1024
CHUNK_LINE_BYTES_MAX = 1024
READ_BYTES = 64 * 1024


class HttpError(Exception):
    """The exchange broke, or what came is no HTTP."""


class UnreachableError(HttpError):
    """There is no connection to be had: the server never saw the request."""


class HttpClient:
    """Sends requests, and keeps connections for the next ones."""

    def __init__(self, *, key: str = "") -> None:
        """`key` is what a server wants to see behind `Authorization: Bearer`."""
        self._extra = f"authorization: Bearer {key}\r\n" if key else ""
        self._kept: dict[str, list[_Connection]] = {}

    @asynccontextmanager
    async def request(self, method: str, url: str, body: bytes | None = None) -> AsyncIterator[Response]:
        """The response, once its head is there.

        Raises:
            UnreachableError, HttpError: also while the response is read.
        """
        origin, head = self._head(method, url, body)
        message = head + (body or b"")
        connection = self._take(origin)
        if connection is None:
            connection = await _connect(origin)
        try:
            try:
                response = await connection.exchange(message)
            except HttpError:
                if connection.uses == 1 or connection.answered:
                    raise
                connection.close()
                connection = await _connect(origin)
                response = await connection.exchange(message)
            yield response
            if response.complete and response.kept:
                self._keep(origin, connection)
        finally:
            if not connection.idle:
                connection.close()

    def close(self) -> None:
        """Close what is kept."""
        for connections in self._kept.values():
            for connection in connections:
                connection.close()
        self._kept.clear()

    def _head(self, method: str, url: str, body: bytes | None) -> tuple[str, bytes]:
        scheme, host, target, query, _ = urlsplit(url)
        path = (target or "/") + (f"?{query}" if query else "")
        head = f"{method} {path} HTTP/1.1\r\nhost: {host.rpartition('@')[2]}\r\naccept-encoding: identity\r\n"
        if body is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return f"{scheme}://{host}", f"{head}{self._extra}\r\n".encode()

    def _take(self, origin: str) -> _Connection | None:
        kept = self._kept.get(origin)
        while kept:
            connection = kept.pop()
            if connection.is_fresh():
                connection.idle = False
                return connection
            connection.close()
        return None

    def _keep(self, origin: str, connection: _Connection) -> None:
        kept = self._kept.setdefault(origin, [])
        if len(kept) < KEPT_MAX:
            connection.idle, connection.used_at = True, trio.current_time()
            kept.append(connection)


class Response:
    """A response's head, and its body as it comes."""

    def __init__(self, connection: _Connection, status: int, headers: dict[bytes, bytes]) -> None:
        self.status = status
        self.headers = headers
        """Names in lower case."""
        self.kept = headers.get(b"connection", b"").lower() != b"close"
        """Whether the connection can be used again."""
        self.complete = False
        """Whether the body has come to its end."""
        self._connection = connection
        self._chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        length = headers.get(b"content-length")
        self._left: int | None = None if length is None else _number(length, 10)
        """Bytes to come of the body or of a chunk; None where only the end of the connection will tell."""
        if self._chunked:
            self._left = 0
        elif length is None:
            self.kept = False
        if status in (204, 304) or (self._left == 0 and not self._chunked):
            self.complete = True

    async def receive(self) -> bytes:
        """The next bytes of the body; empty at its end. Raises `HttpError` where it breaks off."""
        buffer = self._connection.buffer
        while not self.complete:
            data = self._chunks(buffer) if self._chunked else self._plain(buffer)
            if data or self.complete:
                return data
            if not await self._connection.fill():
                if self._left is not None:
                    raise HttpError("the connection was closed before the end of the response")
                self.complete = True
        return b""

    def _plain(self, buffer: bytearray) -> bytes:
        take = len(buffer) if self._left is None else min(self._left, len(buffer))
        data = bytes(buffer[:take])
        del buffer[:take]
        if self._left is not None:
            self._left -= take
            self.complete = self._left == 0
        return data

    def _chunks(self, buffer: bytearray) -> bytes:
        """The content of all chunks, and parts of them, that have come."""
        pieces: list[bytes] = []
        at = 0
        while True:
            if self._left:
                piece = bytes(buffer[at : at + self._left])
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
            line = self._chunk_line(buffer, at)
            if line is None:
                break
            size, at = line
            if size == 0:
                self.complete = True
                break
            self._left = size
        del buffer[:at]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _chunk_line(self, buffer: bytearray, at: int) -> tuple[int, int] | None:
        """The next chunk's size, and where it begins; after the last one, where its trailer ends."""
        begin = at + 2 if buffer.startswith(b"\r\n", at) else at  # the end of the chunk before
        end = buffer.find(b"\r\n", begin)
        if end < 0:
            if len(buffer) - at > CHUNK_LINE_BYTES_MAX:
                raise HttpError("a chunk's size is no number")
            return None
        size = _number(bytes(buffer[begin:end]).partition(b";")[0], 16)
        if size:
            return size, end + 2
        trailer = buffer.find(b"\r\n\r\n", end)
        return None if trailer < 0 else (0, trailer + 4)


class _Connection:
    """One connection."""

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self.buffer = bytearray()
        self.uses = 0
        self.answered = False
        """Whether a byte of the present response has come."""
        self.idle = False
        self.used_at = 0.0
        self._stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        """Where there is no TLS in between, its reads and writes go by trio's bookkeeping."""

    def is_fresh(self) -> bool:
        """Whether it can be expected to be open still."""
        if self.buffer or trio.current_time() >= self.used_at + KEPT_S:
            return False
        if self._socket is None:
            return True
        return not self._socket.is_readable()  # what comes between two responses is their end

    def close(self) -> None:
        """Close it at once, without a word."""
        stream = (
            self._stream if isinstance(self._stream, trio.SocketStream) else self._stream.transport_stream
        )
        stream.socket.close()

    async def exchange(self, message: bytes) -> Response:
        """Send a request and read the response's head. Raises `HttpError`."""
        self.uses += 1
        self.answered = False
        try:
            sent = 0 if self._socket is None else self._send_now(self._socket, message)
            if sent < len(message):
                await self._stream.send_all(message[sent:])
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            raise HttpError("the connection broke while the request was sent") from None
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self.buffer) > HEAD_BYTES_MAX:
                    raise HttpError("the response's head is too long")
                if not await self.fill():
                    raise HttpError("the server closed the connection without an answer")
                continue
            status, headers = _parse_head(bytes(self.buffer[:end]))
            del self.buffer[: end + 4]
            if status >= 200:
                return Response(self, status, headers)

    @staticmethod
    def _send_now(sock: trio.socket.SocketType, message: bytes) -> int:
        """Send what the socket takes at once, which is nearly always all of it; trio would take a turn."""
        try:
            return os.write(sock.fileno(), message)
        except BlockingIOError:
            return 0

    async def fill(self) -> bool:
        """Read some more; False at the end. Raises `HttpError`."""
        try:
            if self._socket is None:
                data = await self._stream.receive_some(READ_BYTES)
            else:
                # An answer is hardly ever there already: trio's own way would try, fail, and then wait.
                await trio.lowlevel.wait_readable(self._socket)
                data = os.read(self._socket.fileno(), READ_BYTES)
        except BlockingIOError:
            return True  # somebody else's wake-up; nothing came
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            raise HttpError("the connection broke") from None
        self.buffer += data
        self.answered |= bool(data)
        return bool(data)


async def _connect(origin: str) -> _Connection:
    """A new connection. Raises `UnreachableError`."""
    parts = urlsplit(origin)
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            if secure:
                stream = await trio.open_ssl_over_tcp_stream(
                    host, port, https_compatible=True, ssl_context=ssl.create_default_context()
                )
                await stream.do_handshake()
            else:
                stream = await trio.open_tcp_stream(host, port)
                with suppress(OSError):
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except trio.TooSlowError:
        raise UnreachableError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None
    except (OSError, trio.BrokenResourceError) as error:
        raise UnreachableError(str(error) or type(error).__name__) from error
    return _Connection(stream)


def _parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise HttpError("what came is no HTTP")
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    return _number(rest[:3], 10), headers


def _number(digits: bytes, base: int) -> int:
    try:
        number = int(digits, base)
    except ValueError:
        number = -1
    if number < 0:
        raise HttpError(f"{digits[:20]!r} is no number")
    return number
