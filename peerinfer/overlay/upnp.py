"""A forwarded port, asked of the router: UPnP's Internet Gateway Device, for nodes behind a home router.

Off by default: whoever is on the network may have a router forward ports, and that is what this does. The
lease is renewed while the node runs and given back when it ends; a router that forgets is asked again. All
of the router's calls block, so they run in a thread of their own kind. A router with a private address of its
own is behind another one, and what it forwards reaches nobody: then nothing is announced.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import miniupnpc
import trio

log = logging.getLogger("peerinfer.overlay")

DISCOVER_MS = 2000
"""How long routers may take to answer."""
INTERFACE = ""
"""The address of the interface on which they are asked; empty: the machine's choice."""
LEASE_S = 3600  # guess
TRIED_MAX = 8  # guess
"""Ports, where the router gave the one that is wanted to somebody else."""
GIVE_BACK_S = 1.0  # guess


Result = TypeVar("Result")


class UpnpError(Exception):
    """No port is forwarded; the message says why."""


class PortMapping:
    """The ports that a router forwards to this node, as long as `run` does."""

    def __init__(self, *, renew_s: float) -> None:
        self._renew_s = renew_s
        self.addrs: tuple[str, ...] = ()
        """Under which the outside reaches this node now."""
        self._ports: tuple[int, ...] = ()
        self._threads = trio.CapacityLimiter(1)
        self._router: Any = None
        self._mapped: dict[int, int] = {}
        """From the ports here to those outside."""
        self._told = ""

    async def run(self, ports: Sequence[int]) -> None:
        """Keep these ports forwarded, for ever."""
        self._ports = tuple(ports)
        try:
            while True:
                try:
                    self.addrs = await self._in_thread(self._map)
                    self._tell(f"upnp=forwarded addrs={', '.join(self.addrs)}")
                except UpnpError as error:
                    self.addrs = ()
                    self._tell(f"upnp=none reason={str(error)!r}")
                await trio.sleep(self._renew_s)
        finally:
            if self._mapped:
                with trio.move_on_after(GIVE_BACK_S, shield=True):
                    await self._in_thread(self._give_back)

    async def _in_thread(self, call: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)

    def _map(self) -> tuple[str, ...]:
        """Ask for all ports; the addresses outside. Raises `UpnpError`."""
        if self._router is not None:
            try:
                return self._map_at(self._router)
            except UpnpError:
                pass  # it may have begun anew, or be another one by now
        self._router = _find()
        return self._map_at(self._router)

    def _map_at(self, router: Any) -> tuple[str, ...]:
        outside: str | None = _called(router.externalipaddress)
        if not _is_public(outside):
            raise UpnpError(f"the router is itself behind another one: its address is {outside or 'unknown'}")
        self._mapped = {port: self._map_one(router, port) for port in self._ports}
        return tuple(f"/ip4/{outside}/tcp/{port}" for port in self._mapped.values())

    def _map_one(self, router: Any, port: int) -> int:
        """The port outside that leads here."""
        failure = UpnpError("the router forwards no port")
        wanted: int = self._mapped.get(port, port)
        for outside in (wanted, *range(port + 1, port + TRIED_MAX)):
            forward = partial(router.addportmapping, outside, "TCP", router.lanaddr, port)
            try:
                _called(partial(forward, "peerinfer", "", LEASE_S))
            except UpnpError as error:  # perhaps another machine has that port
                failure = error
            else:
                return int(outside)
        raise failure

    def _give_back(self) -> tuple[str, ...]:
        try:
            for outside in self._mapped.values():
                _called(partial(self._router.deleteportmapping, outside, "TCP"))
        except UpnpError as error:
            log.debug("upnp: the ports were not given back: %s", error)
        return ()

    def _tell(self, what: str) -> None:
        if what != self._told:
            log.info("%s", what)
            self._told = what


def _find() -> Any:
    router = miniupnpc.UPnP(multicastif=INTERFACE or None, discoverdelay=DISCOVER_MS)
    try:
        _called(router.discover)
        _called(router.selectigd)
    except UpnpError:
        raise UpnpError("no router answers") from None
    return router


def _called(call: Callable[[], Result]) -> Result:
    """What a call of the library gives; it raises nothing but `Exception` itself."""
    try:
        return call()
    except Exception as error:
        raise UpnpError(str(error)) from None


def _is_public(address: str | None) -> bool:
    try:
        return ipaddress.IPv4Address(address or "").is_global
    except ValueError:
        return False
