"""The HTTP server: a socket, and a task for every connection of it.

It lives in the caller's nursery and ends when it is cancelled, at once: a request that has no answer yet
gets a 503, open streams and idle connections are cut, nothing is waited for. Between requests it sleeps;
nothing polls.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import trio
from starlette.types import ASGIApp

from peerinfer.api.app import build_app, build_telling_app
from peerinfer.api.connection import Waiting, serve_connection
from peerinfer.api.ports import Serving, Telling
from peerinfer.api.security import HostPolicy
from peerinfer.config import HttpConfig

log = logging.getLogger("peerinfer.api")

PORTS_TRIED = 64  # guess
"""How far a defaulted port moves on."""

BACKLOG = 256  # guess

TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class TaskStatus(Protocol):
    """The part of `trio.TaskStatus[str]` used here; libp2p brings stubs of a trio that had no such name."""

    def started(self, value: str, /) -> None:
        """The server answers at this base URL now."""


class ListenError(Exception):
    """The face cannot listen where it was told to; the message says why and what to do."""


def open_listener(config: HttpConfig) -> socket.socket:
    """A socket that listens at `config.host`: at `config.port`, or a defaulted port's next free one.

    Raises:
        ListenError: the port is taken, the address is not this machine's or reached by others who need no
            key, …
    """
    family, address = _resolve(config.host)
    if not (config.api_key or config.insecure or ipaddress.ip_address(address).is_loopback):
        raise ListenError(
            f"{config.host} can be reached from other machines: give --api-key-file FILE (or --api-key KEY), "
            "or --insecure if whoever reaches it may use it."
        )
    last = min(config.port + PORTS_TRIED - 1, 65535) if config.port_is_default else config.port
    for port in range(config.port, last + 1):
        try:
            return _listen(family, address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ListenError(
                    f"Cannot listen on {config.host} port {port}: {error.strerror}; "
                    "choose another with --http HOST:PORT."
                ) from error
    if last > config.port:
        raise ListenError(
            f"Ports {config.port} to {last} of {config.host} are all taken; choose one with --http HOST:PORT."
        )
    raise ListenError(
        f"Port {config.port} of {config.host} is taken; choose another one with --http HOST:PORT, "
        "or leave --http out to get the next free one."
    )


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"{host!r} is no address of this machine: {error.strerror}.") from error
    family, *_, address = min(found, key=lambda item: item[0] != socket.AF_INET)
    return family, str(address[0])


def _listen(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    """Bound and listening: only `listen` settles who has a port that two processes bind at once."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def base_url(listening: socket.socket) -> str:
    """Where a client on this machine reaches a listening socket, without a slash at the end."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve_http(
    node: Serving,
    config: HttpConfig,
    *,
    listening: socket.socket | None = None,
    task_status: TaskStatus = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `node` over HTTP until cancelled; `nursery.start` returns the base URL once it answers.

    `listening` comes from `open_listener`, for callers that need the port first; it is closed here.

    Raises:
        ListenError: from `open_listener`.
    """
    await _serve(partial(build_app, node, config), node, config, listening, task_status)


async def serve_telling(
    peer: Telling,
    config: HttpConfig,
    *,
    listening: socket.socket,
    task_status: TaskStatus = trio.TASK_STATUS_IGNORED,
) -> None:
    """The same for a peer that tells how it is doing and serves no requests."""
    await _serve(partial(build_telling_app, peer, config), peer, config, listening, task_status)


async def _serve(
    build: Callable[[HostPolicy], ASGIApp],
    peer: Telling,
    config: HttpConfig,
    listening: socket.socket | None,
    task_status: TaskStatus,
) -> None:
    if listening is None:
        listening = open_listener(config)
    with listening:
        url = base_url(listening)
        app = build(HostPolicy(config.host, listening.getsockname()[0], config.allowed_hosts))
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        server = _Server(app, config.connections_max, partial(peer.dropped_http, "not_http"))
        task_status.started(url)
        await trio.serve_listeners(server.serve, [listener])


class _Server:
    """Serves connections, a bounded number at once."""

    def __init__(self, app: ASGIApp, connections_max: int, on_garbage: Callable[[], None]) -> None:
        self._app, self._connections_max, self._on_garbage = app, connections_max, on_garbage
        self._open = 0
        self._waiting = Waiting()

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection from its first byte to its end; whatever fails on it ends here."""
        # Strangers without a key can open connections and be silent: that must not shut anybody out.
        if self._open >= self._connections_max and not self._waiting.end_one():
            await _turn_away(stream)
            return
        self._open += 1
        try:
            await serve_connection(self._app, stream, self._on_garbage, self._waiting)
        except Exception:
            log.exception("connection failed by a bug")
        finally:
            self._open -= 1


async def _turn_away(stream: trio.SocketStream) -> None:
    """Answer before closing; with the request unread the client would see a reset in its place."""
    with trio.move_on_after(1.0), suppress(trio.BrokenResourceError):
        await stream.send_all(TOO_MANY)
        await stream.send_eof()
        await stream.receive_some(65536)
