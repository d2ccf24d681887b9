"""What is typed as an address: multiaddrs to listen on and to join, and `HOST:PORT`.

Only the forms that the overlay speaks are let through, and an error names the part that is wrong, since
`invalid multiaddr` about 90 characters helps nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import TypeVar

import click
from multiaddr import Multiaddr

EXAMPLE_LISTEN = "/ip4/0.0.0.0/tcp/4001"
EXAMPLE_ANNOUNCE = "/ip4/192.0.2.7/tcp/4001"
EXAMPLE_JOIN = "/ip4/192.0.2.7/tcp/4001/p2p/12D3KooW…"
NAMES = ("dns", "dns4", "dns6")
PORT_MAX = 65535

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class HostPort:
    """Where HTTP listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class AddressError(ValueError):
    """The message names the part that is wrong."""


def parse_listen(text: str) -> str:
    """A multiaddr to listen on, as given. Raises `AddressError`."""
    kind, host, port, rest = _split(text, EXAMPLE_LISTEN)
    if kind in NAMES:
        raise AddressError(f"'/{kind}/{host}': listen on an address (/ip4/… or /ip6/…), not on a name")
    if rest:
        raise AddressError(f"'/{'/'.join(rest)}': nothing may follow the port, as in {EXAMPLE_LISTEN}")
    _check_port(port, lowest=0)
    return text


def parse_announce(text: str) -> str:
    """A multiaddr that others are to dial, as given. Raises `AddressError`."""
    kind, host, port, rest = _split(text, EXAMPLE_ANNOUNCE)
    _check_dialable(kind, host)
    if rest:
        raise AddressError(f"'/{'/'.join(rest)}': nothing may follow the port, as in {EXAMPLE_ANNOUNCE}")
    _check_port(port, lowest=1)
    return text


def parse_join(text: str) -> str:
    """A peer's full multiaddr, as given. Raises `AddressError`."""
    kind, host, port, rest = _split(text, EXAMPLE_JOIN)
    _check_dialable(kind, host)
    _check_port(port, lowest=1)
    if not rest:
        raise AddressError(f"'/p2p/…' is missing: the peer's id belongs at the end, as in {EXAMPLE_JOIN}")
    if len(rest) != 2 or rest[0] != "p2p":
        raise AddressError(f"'/{'/'.join(rest)}': after the port comes /p2p/ and the peer's id, nothing else")
    try:
        Multiaddr(f"/p2p/{rest[1]}")
    except ValueError:
        raise AddressError(f"'/p2p/{rest[1]}': no peer id (12D3KooW… or Qm…); copy it whole") from None
    return text


def parse_host_port(text: str) -> HostPort:
    """`HOST:PORT` or `[IPV6]:PORT`. Raises `AddressError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise AddressError(f"'{text}': give HOST:PORT, as in 127.0.0.1:8000")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise AddressError(f"'{host}': an IPv6 address goes in brackets, as in [::1]:8000")
    return HostPort(host, _check_port(port, lowest=0))


def _split(text: str, example: str) -> tuple[str, str, str, list[str]]:
    """Kind of host, host, port and what follows, with the host checked."""
    if not text.startswith("/"):
        raise AddressError(f"'{text}': a multiaddr starts with '/', as in {example}")
    parts = text[1:].split("/")
    kind, host = parts[0], parts[1] if len(parts) > 1 else ""
    if kind not in ("ip4", "ip6", *NAMES):
        raise AddressError(f"'/{kind}': starts with none of /ip4, /ip6, /dns4, /dns6, as in {example}")
    if not _is_host(kind, host):
        raise AddressError(f"'/{kind}/{host}': '{host}' is no {_meaning(kind)}")
    if len(parts) < 4 or parts[2] != "tcp":
        wrong = f"'/{'/'.join(parts[2:])}': " if parts[2:] else ""
        raise AddressError(f"{wrong}/tcp/PORT must follow the host, as in {example}")
    return kind, host, parts[3], parts[4:]


def _check_dialable(kind: str, host: str) -> None:
    if kind in ("ip4", "ip6") and ip_address(host).is_unspecified:
        raise AddressError(f"'{host}': that is where a node listens, not where others reach it")


def _is_host(kind: str, host: str) -> bool:
    try:
        if kind == "ip4":
            IPv4Address(host)
        elif kind == "ip6":
            IPv6Address(host)
        else:
            Multiaddr(f"/{kind}/{host}")
    except (AddressValueError, ValueError):
        return False
    return bool(host)


def _meaning(kind: str) -> str:
    return {"ip4": "IPv4 address", "ip6": "IPv6 address"}.get(kind, "host name")


def _check_port(text: str, *, lowest: int) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not lowest <= port <= PORT_MAX:
        raise AddressError(f"'{text}': a port is a number from {lowest} to {PORT_MAX}")
    return port


def checked(
    parse: Callable[[str], Parsed],
) -> Callable[
    [click.Context, click.Parameter, str | Sequence[str] | None], Parsed | tuple[Parsed, ...] | None
]:
    """A click callback that parses one value or several, and makes a usage error of an `AddressError`."""

    def callback(
        context: click.Context, param: click.Parameter, value: str | Sequence[str] | None
    ) -> Parsed | tuple[Parsed, ...] | None:
        try:
            if value is None or isinstance(value, str):
                return None if value is None else parse(value)
            return tuple(parse(item) for item in value)
        except AddressError as error:
            raise click.BadParameter(str(error), ctx=context, param=param) from None

    return callback
