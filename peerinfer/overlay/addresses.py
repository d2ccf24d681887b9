"""Multiaddrs: what may be listened on, dialled and told to others.

Never an unspecified or a multicast address, and no loopback unless this node is on loopback itself:
whoever learned one would dial itself. What people type is answered with a message that they can act
on; what peers announce is filtered without a word.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import trio
from libp2p.peer.id import ID
from multiaddr import Multiaddr
from multiaddr.utils import get_network_addrs

from peerinfer.core.types import PeerId

ADDRESSES_PER_PEER_MAX = 8
"""As many as a snapshot carries."""

_IP = ("ip4", "ip6")
_DNS = ("dns4", "dns6", "dns")


class AddressInUseError(OSError):
    """Somebody listens there already."""


def parse_peer_address(text: str) -> tuple[PeerId, str]:
    """The peer id and the address, without `/p2p/…`, of a peer to join through.

    Raises:
        ValueError: with a message for the person who typed it.
    """
    parts = _parse(text)
    if [name for name, _ in parts[2:]] != ["p2p"]:
        raise ValueError(f"{text}: the address of a peer ends with its id: /ip4/…/tcp/…/p2p/12D3…")
    _check_transport(text, parts, listening=False)
    peer = ID.from_string(parts[2][1]).to_base58()
    if not is_peer_id(peer):
        raise ValueError(f"{text}: {parts[2][1]} is no peer id")
    return PeerId(peer), _join(parts[:2])


def parse_peer_id(text: str) -> PeerId:
    """A peer id in any of its spellings, in the one that is used here.

    Raises:
        ValueError: with a message for the person who typed it.
    """
    try:
        peer = ID.from_string(text).to_base58()
    except Exception:  # the library raises whatever its parsers raise
        peer = ""
    if not is_peer_id(peer):
        raise ValueError(f"{text}: this is no peer id (12D3KooW… or Qm…)")
    return PeerId(peer)


def is_peer_id(text: str) -> bool:
    """The text names a public key: by its SHA-256, or when it is short by holding it."""
    try:
        peer_id = ID.from_base58(text)
    except ValueError:
        return False
    data = peer_id.to_bytes()
    return (data[:2] == b"\x12\x20" and len(data) == 34) or peer_id.extract_public_key() is not None


def parse_listen_address(text: str) -> str:
    """An address to listen on.

    Raises:
        ValueError: with a message for the person who typed it.
    """
    return _parse_bare(text, "an address to listen on is /ip4/…/tcp/… or /ip6/…/tcp/…", listening=True)


def parse_announced_address(text: str) -> str:
    """An address that others are to dial, without `/p2p/…`.

    Raises:
        ValueError: with a message for the person who typed it.
    """
    return _parse_bare(text, "an address to announce is /ip4/…/tcp/… or /dns4/…/tcp/…", listening=False)


def _parse_bare(text: str, expected: str, *, listening: bool) -> str:
    """A host and a port, without a peer. Raises `ValueError`, which says what was expected."""
    parts = _parse(text)
    if len(parts) != 2:
        raise ValueError(f"{text}: {expected}, and nothing more")
    _check_transport(text, parts, listening=listening)
    return _join(parts)


def check_free(addr: str) -> None:
    """Raise `AddressInUseError` if somebody listens on this TCP address.

    The library listens with SO_REUSEPORT, so that a second process would start silently and take half of
    the connections. A socket without that option cannot share the address.
    """
    (family, host), (_, port) = _parse(addr)
    if port == "0":
        return
    with socket.socket(socket.AF_INET6 if family == "ip6" else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
        if family == "ip6":
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            raise AddressInUseError(error.errno, f"cannot listen on {addr}: {error.strerror}") from error


def advertised(listening: Iterable[str]) -> list[str]:
    """What others are told of the addresses listened on: a wildcard becomes this machine's LAN addresses.

    A machine without any network advertises loopback, where its own other nodes find it.
    """
    found: list[str] = []
    for addr in listening:
        (family, host), (_, port) = _parse(addr)
        if ipaddress.ip_address(host).is_unspecified:
            hosts = _interfaces(6 if family == "ip6" else 4)
        else:
            hosts = [host]
        found += [f"/{family}/{each}/tcp/{port}" for each in hosts]
    return list(dict.fromkeys(found))


def on_loopback(addrs: Sequence[str]) -> bool:
    """Whether a node with these addresses can only be reached from its own machine."""
    return bool(addrs) and all(ipaddress.ip_address(_parse(addr)[0][1]).is_loopback for addr in addrs)


def dialable(addrs: Iterable[str], *, loopback: bool) -> tuple[str, ...]:
    """The addresses worth dialling among those that a peer announced, without `/p2p/…`; a few at most."""
    found = (_dialable(addr, loopback=loopback) for addr in addrs)
    return tuple(dict.fromkeys(addr for addr in found if addr))[:ADDRESSES_PER_PEER_MAX]


def as_strings(addrs: Iterable[Any]) -> list[str]:
    """The library's addresses as strings, without those that cannot be written.

    It keeps what a peer sent as bytes, and parses them when somebody looks.
    """
    found: list[str] = []
    for addr in addrs:
        with suppress(Exception):  # whatever its parsers of the parts raise
            found.append(str(addr))
    return found


async def resolve(addr: str, *, limiter: trio.CapacityLimiter | None = None) -> list[Any]:
    """The library's form of an address, one for each IP that a name stands for.

    A question that nobody answers keeps its thread for half a minute, whoever has stopped waiting for it:
    `limiter` says how many may.

    Raises:
        OSError, ValueError: it stands for none.
    """
    (kind, host), (_, port) = _parse(addr)
    if kind in _IP:
        return [Multiaddr(addr)]
    family = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6}.get(kind, socket.AF_UNSPEC)
    look_up = partial(socket.getaddrinfo, host, int(port), family, socket.SOCK_STREAM)
    found = await trio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=limiter)
    ips = dict.fromkeys((info[0], str(info[4][0])) for info in found)
    return [
        Multiaddr(f"/{'ip6' if family == socket.AF_INET6 else 'ip4'}/{ip}/tcp/{port}") for family, ip in ips
    ]


@lru_cache(maxsize=4096)  # snapshots name the same few addresses twice a second
def _dialable(addr: str, *, loopback: bool) -> str | None:
    try:
        parts = _parse(addr)
        _check_transport(addr, parts, listening=False)
    except ValueError:
        return None
    kind, host = parts[0]
    if [name for name, _ in parts[2:]] not in ([], ["p2p"]):
        return None
    if kind in _IP:
        ip = ipaddress.ip_address(host)
        if ip.is_link_local or (ip.is_loopback and not loopback):
            return None
    return _join(parts[:2])


def _check_transport(text: str, parts: list[tuple[str, str]], *, listening: bool) -> None:
    """The first two parts: a host of this kind, and a TCP port."""
    hosts = _IP if listening else _IP + _DNS
    if len(parts) < 2 or parts[0][0] not in hosts or parts[1][0] != "tcp":
        raise ValueError(f"{text}: only {', '.join(f'/{each}' for each in hosts)} with /tcp are supported")
    kind, host = parts[0]
    if kind in _IP and ipaddress.ip_address(host).is_multicast:
        raise ValueError(f"{text}: a multicast address is no peer")
    if not listening and kind in _IP and ipaddress.ip_address(host).is_unspecified:
        raise ValueError(f"{text}: {host} is where a node listens, not where it can be reached")
    if not listening and parts[1][1] == "0":
        raise ValueError(f"{text}: port 0 is for listening")


def _parse(text: str) -> list[tuple[str, str]]:
    """Names and values of a multiaddr's parts."""
    try:
        return [(protocol.name, value) for protocol, value in Multiaddr(text).items()]
    except Exception as error:  # the library raises whatever its parsers of the parts raise
        raise ValueError(f"{text}: this is no multiaddr ({error})") from error


def _join(parts: list[tuple[str, str]]) -> str:
    return "".join(f"/{name}/{value}" for name, value in parts)


def _interfaces(version: int) -> list[str]:
    return get_network_addrs(version) or (["127.0.0.1"] if version == 4 else ["::1"])
