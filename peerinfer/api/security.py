"""Who may talk to the face: programs on this machine and pages of its own, never a foreign page.

A web page can make its visitor's browser send requests to `127.0.0.1`. Two headers tell on it, and the
browser does not let a page forge them: `Host` carries the attacker's name after DNS rebinding, `Origin`
the page's site. An address in `Host` cannot be rebound, so addresses are accepted wherever the face can
be reached by address. Bodies must be `application/json`, which a page can send across sites only after
a CORS preflight; there is no CORS, so it never may.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from peerinfer.api.errors import BadRequestError

DEFAULT_PORTS = {"http": 80, "https": 443}

RawHeaders = Iterable[tuple[bytes, bytes]]


class HostPolicy:
    """Which `Host` and `Origin` headers are ours, for a face that was told to bind `host`: `address`.

    `allowed` are further names under which it is reached.
    """

    def __init__(self, host: str, address: str, allowed: Iterable[str] = ()) -> None:
        self._any_address = not ipaddress.ip_address(address).is_loopback
        names = {"localhost", host.lower(), *(name.lower() for name in allowed)}
        if self._any_address:
            own = socket.gethostname().lower()
            names |= {own, own.partition(".")[0], own.partition(".")[0] + ".local"}
        self._names = frozenset(names)

    def check(self, headers: RawHeaders) -> None:
        """Let a request pass.

        Raises:
            BadRequestError: status 403; the message says what to do.
        """
        host = None
        origins = []
        for name, value in headers:
            if name == b"host":
                host = value.decode("latin-1")
            elif name == b"origin":
                origins.append(value.decode("latin-1"))
        # Only HTTP/1.0 may leave Host out, and no browser speaks that.
        if host is not None and not self._is_ours(host):
            raise BadRequestError(
                f"Host {_shown(host)} is not this node; use http://127.0.0.1 or http://localhost with its "
                "port, start it with --http HOST:PORT under the address that you want to use, or allow the "
                "name with --allow-host NAME.",
                reason="host",
                status=403,
                code="foreign_host",
            )
        for origin in origins:
            if host is None or not _same_site(origin, host):
                raise BadRequestError(
                    f"Pages of {_shown(origin)} may not use this node; call it from a program, "
                    "or through a server of yours.",
                    reason="origin",
                    status=403,
                    code="foreign_origin",
                )

    def _is_ours(self, host: str) -> bool:
        split = _split(host)
        if split is None:
            return False
        name = split[0]
        if name in self._names:
            return True
        address = _address(name)
        return address is not None and (self._any_address or address.is_loopback)


def _split(netloc: str) -> tuple[str, int | None] | None:
    """Name and port of a `Host` value; None if it is none."""
    try:
        parts = urlsplit(f"//{netloc}")
        port = parts.port
    except ValueError:
        return None
    if parts.netloc != netloc or not parts.hostname or "@" in netloc:
        return None
    return parts.hostname.removesuffix("."), port


def _same_site(origin: str, host: str) -> bool:
    """Whether a page of `origin` was loaded from the `host` that it talks to: name and port are equal."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return False
    default = DEFAULT_PORTS.get(parts.scheme)
    target = _split(host)
    if default is None or parts.hostname is None or target is None:
        return False
    return (parts.hostname, port or default) == (target[0], target[1] or default)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _shown(value: str) -> str:
    """A stranger's header as it may stand in a message."""
    return repr(value[:100])


def check_content_type(headers: RawHeaders) -> None:
    """Let a JSON body pass.

    Raises:
        BadRequestError: status 415.
    """
    media, encoding = "", "identity"
    for name, value in headers:
        if name == b"content-type":
            media = value.decode("latin-1").partition(";")[0].strip().lower()
        elif name == b"content-encoding":
            encoding = value.decode("latin-1").strip().lower()
    if media != "application/json":
        raise BadRequestError(
            f"The body must be JSON and say so: send the header 'content-type: application/json' "
            f"(this one said {_shown(media) if media else 'nothing'}).",
            reason="content_type",
            status=415,
            code="unsupported_media_type",
        )
    if encoding != "identity":
        raise BadRequestError(
            f"The body must not be compressed (content-encoding {_shown(encoding)}).",
            reason="content_type",
            status=415,
            code="unsupported_media_type",
        )
