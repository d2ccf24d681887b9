"""One client's connection: HTTP/1.1 over its socket, and an ASGI app behind it.

Theory of operation. The connection's task is the only one: it reads a request's head and calls the app. What
the app awaits reads the socket: `receive` takes the body's pieces from it, and afterwards waits for the
client to leave. So nothing runs beside the app, and nothing is handed over. h11, which is strict, reads the
requests, one parser for each; responses are framed here, and a head goes out together with what follows it.
Why there is no ASGI server: docs/adr/0006.

What a client sends ahead of an answer is read up to a bound, so that its leaving shows. Behind that bound the
socket is not read any more, and its leaving is noticed with the next bytes to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import unquote

import h11
import trio
from starlette.types import ASGIApp, Message, Scope

from peerinfer.api.client_socket import ClientSocket
from peerinfer.api.errors import Headers, error_headers, error_json, internal_error, shutting_down
from peerinfer.core.types import RequestError

KEEP_ALIVE_S = 75.0  # nginx's; clients' pools forget a connection earlier, so they never lose that race
"""A connection that brings no request for this long is closed."""
HEAD_BYTES_MAX = 16 * 1024  # guess
BLANK_BYTES_MAX = 8
"""Of empty lines before a request: some clients end a body with one more (RFC 9112 §2.2)."""
AHEAD_BYTES_MAX = 64 * 1024  # guess
"""What a client may send ahead of an answer."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_WEBSOCKETS = b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Waiting:
    """The connections that bring no request at the moment, the one that has for the longest time first."""

    def __init__(self) -> None:
        self._scopes: dict[trio.CancelScope, None] = {}

    def end_one(self) -> bool:
        """End the first; False if there is none."""
        for scope in self._scopes:
            del self._scopes[scope]
            scope.cancel()
            return True
        return False

    @contextmanager
    def for_at_most(self, seconds: float) -> Iterator[None]:
        """Around a wait for a request."""
        with trio.move_on_after(seconds) as scope:
            self._scopes[scope] = None
            try:
                yield
            finally:
                self._scopes.pop(scope, None)


async def serve_connection(
    app: ASGIApp, stream: trio.SocketStream, on_garbage: Callable[[], None], waiting: Waiting
) -> None:
    """Serve requests until either side closes; `on_garbage` is told when what comes is no HTTP."""
    with trio.CancelScope() as scope:
        client = ClientSocket(stream, scope)
        try:
            unread: bytes | None = b""
            while unread is not None:
                unread = await _Exchange(client, on_garbage, waiting, unread).run(app)
        finally:
            client.close()


class _Exchange:
    """One request and its response."""

    def __init__(
        self, client: ClientSocket, on_garbage: Callable[[], None], waiting: Waiting, unread: bytes
    ) -> None:
        self._client = client
        self._on_garbage = on_garbage
        self._waiting = waiting
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._blank_bytes = 0
        self._begun = False
        """A byte came that is not of an empty line."""
        if unread:
            self._feed(unread)
        self._body_is_read = False
        self._response = _Response()

    async def run(self, app: ASGIApp) -> bytes | None:
        """Serve it; what came behind it, or None when the connection is to be closed."""
        request = None
        try:
            with self._waiting.for_at_most(KEEP_ALIVE_S):
                request = await self._next_event()
                _check_head(request)
        except h11.RemoteProtocolError as error:
            await self._refuse(error)
            return None
        if not isinstance(request, h11.Request):
            return None
        self._response.answers(request)
        try:
            await app(_scope(request), self._receive, self._send)
        except BaseException:  # cancellation, perhaps of several tasks; the app lets nothing else out
            self._say_goodbye(shutting_down())
            raise
        if not self._response.ended:
            self._say_goodbye(internal_error())
            return None
        if not (self._response.keeps_open and self._body_is_here()):
            return None
        return self._parser.trailing_data[0]

    async def _receive(self) -> Message:
        """ASGI's: the body's next piece, then the client's leaving."""
        if self._response.ended:
            return {"type": "http.disconnect"}
        if self._body_is_read:
            await self._until_gone()
            return {"type": "http.disconnect"}
        if self._parser.they_are_waiting_for_100_continue and not self._response.begun:
            await self._client.send(CONTINUE)
        try:
            event = await self._next_event()
        except h11.RemoteProtocolError as error:
            await self._refuse(error)
            return {"type": "http.disconnect"}
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        if isinstance(event, h11.EndOfMessage):
            self._body_is_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        """ASGI's."""
        match message["type"]:
            case "http.response.start":
                self._response.start(message["status"], message["headers"])
            case "http.response.body":
                more = message.get("more_body", False)
                if data := self._response.body(message.get("body", b""), last=not more):
                    await self._client.send(data)
                else:
                    await trio.lowlevel.checkpoint_if_cancelled()
            case "websocket.close":
                self._response.ended, self._response.keeps_open = True, False
                await self._client.send(NO_WEBSOCKETS)
            case other:
                raise AssertionError(f"the app sent {other}")

    async def _next_event(self) -> object:
        """The next part of the request. Raises `h11.RemoteProtocolError`."""
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            data = await self._client.receive()
            if not data:
                return h11.ConnectionClosed()
            self._feed(data)
        return event

    def _feed(self, data: bytes) -> None:
        """What came in, to the parser, which takes no empty lines before a request."""
        if not self._begun:
            rest = data.lstrip(b"\r\n")
            self._blank_bytes += len(data) - len(rest)
            if self._blank_bytes <= BLANK_BYTES_MAX:
                data = rest
            self._begun = bool(data)
        if data:
            self._parser.receive_data(data)

    def _body_is_here(self) -> bool:
        """Whether the request is complete; an app need not have read all of it."""
        while not self._body_is_read:
            try:
                event = self._parser.next_event()
            except h11.RemoteProtocolError:
                return False
            if event is h11.NEED_DATA:
                return False
            self._body_is_read = isinstance(event, h11.EndOfMessage)
        return True

    async def _until_gone(self) -> None:
        """Return when the client has closed its side, whatever it has sent ahead."""
        while len(self._parser.trailing_data[0]) < AHEAD_BYTES_MAX:
            data = await self._client.receive()
            if not data:
                return
            self._parser.receive_data(data)
        await trio.sleep_forever()

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """What came is no HTTP: say so where nothing was said yet."""
        self._on_garbage()
        if not self._response.begun:
            self._response.ended = True
            status = HTTPStatus(error.error_status_hint)
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            )
            await self._client.send(head.encode())
            await self._client.linger()
        self._response.keeps_open = False

    def _say_goodbye(self, error: RequestError) -> None:
        """An error in place of a response that did not begin; one that did just ends."""
        if self._response.begun or self._response.ended:
            return
        body = error_json(error)
        self._response.start(error.status, error_headers(error, body, [(b"connection", b"close")]))
        self._client.send_now(self._response.body(body, last=True))


class _Response:
    """A response's bytes: HTTP/1.1's framing of what the app says."""

    def __init__(self) -> None:
        self.begun = self.ended = False
        self.keeps_open = False
        """Whether the connection may serve another request."""
        self._head = b""
        """While it waits for what follows it."""
        self._is_old = self._is_head = self._chunked = self._bodiless = False

    def answers(self, request: h11.Request) -> None:
        """What the request makes of it."""
        self._is_old = request.http_version < b"1.1"
        self._is_head = request.method == b"HEAD"
        said = [value.lower() for name, value in request.headers if name == b"connection"]
        names = {name for name, _ in request.headers}
        # Whoever stands in between may have gone by the other one, and see another request behind it.
        ambiguous = b"content-length" in names and b"transfer-encoding" in names
        self.keeps_open = not (self._is_old or ambiguous or any(b"close" in value for value in said))

    def start(self, status: int, headers: Headers) -> None:
        """The head; it goes out with the body's first piece."""
        assert not self.begun, "a response has one head"
        self.begun = True
        self._bodiless = self._is_head or status in (204, 304)
        names = {name for name, _ in headers}
        lines = [_status_line(status), _date(int(time.time()))]
        lines += [b"%s: %s\r\n" % header for header in headers]
        if b"content-length" not in names and status not in (204, 304):
            self._chunked = not self._is_old and not self._is_head
            self.keeps_open &= not self._is_old
            if self._chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
        if (b"connection", b"close") in headers:
            self.keeps_open = False
        elif not self.keeps_open:
            lines.append(b"connection: close\r\n")
        self._head = b"".join(lines) + b"\r\n"

    def body(self, piece: bytes, *, last: bool) -> bytes:
        """What goes out now."""
        assert self.begun, "a response begins with its head"
        assert not self.ended, "a response has one end"
        self.ended = last
        if not piece and not last:
            return b""  # the head goes on waiting
        head, self._head = self._head, b""
        if self._bodiless:
            return head
        if not self._chunked:
            return head + piece
        framed = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
        return head + framed + (b"0\r\n\r\n" if last else b"")


def _check_head(request: object) -> None:
    """h11 holds its limit only for a head that is not all there yet. Raises `h11.RemoteProtocolError`."""
    if isinstance(request, h11.Request):
        fields = sum(len(name) + len(value) + len(b": \r\n") for name, value in request.headers)
        if len(request.method) + len(request.target) + fields > HEAD_BYTES_MAX:
            raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)


def _scope(request: h11.Request) -> Scope:
    """ASGI's description of a request."""
    path, _, query = request.target.partition(b"?")
    headers = list(request.headers)
    upgrade = any(name == b"upgrade" and value.lower() == b"websocket" for name, value in headers)
    return {
        "type": "websocket" if upgrade else "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.http_version.decode(),
        "method": request.method.decode().upper(),
        "scheme": "http",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
    }


@lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())


@lru_cache(maxsize=1)
def _date(now: int) -> bytes:
    return f"date: {formatdate(now, usegmt=True)}\r\n".encode()
