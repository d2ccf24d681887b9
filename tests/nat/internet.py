"""An internet of network namespaces: a public machine, and homes behind routers that translate addresses.

    public machine 45.0.0.1 --- internet (a switch) --- router 45.0.0.N+1 --- home (192.168.1.0/24), N times

All homes have the same private network, as in life. A router is what routers at home are: Linux with a
masquerading netfilter. It lets out whatever asks and lets in what answers; who comes unasked meets silence.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache

from tests.nat.machine import CommandFailedError, Machine, connect

PUBLIC = "45.0.0"
"""Somebody's in the real internet, since nothing else counts as public; nothing leaves here."""
PRIVATE = "192.168.1"
FIRST_HOST = 10

RULES = """
table ip home {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        iifname "lan" ct state new accept
        ct status dnat accept
    }
    chain input {
        type filter hook input priority filter; policy accept;
        iifname "wan" ct state new drop
    }
    chain gone {
        type filter hook prerouting priority raw; policy accept;
    }
    chain postrouting {
        type nat hook postrouting priority srcnat;
        oifname "wan" masquerade
    }
}
"""


@dataclass(slots=True)
class Home:
    """A router and the machines behind it."""

    number: int
    router: Machine
    machines: list[Machine] = field(default_factory=list)

    host: int = 0
    """The last part of the router's public address."""

    @property
    def outside(self) -> str:
        """The router's public address."""
        return f"{PUBLIC}.{self.host}"

    def remember(self, seconds: int) -> None:
        """Have the router forget connections that are silent for so long, and let none in that it forgot."""
        self.router.set("netfilter/nf_conntrack_tcp_loose", 0)
        self.router.set("netfilter/nf_conntrack_tcp_timeout_established", seconds)

    def move(self, host: int) -> None:
        """Give the router another public address, as providers do; the old one leads to somebody else."""
        before, self.host = self.outside, host
        self.router.run("nft", "add", "rule", "ip", "home", "gone", "ip", "daddr", before, "drop")
        self.router.run("ip", "address", "del", f"{before}/24", "dev", "wan")
        self.router.run("ip", "address", "add", f"{self.outside}/24", "dev", "wan")


@dataclass(slots=True)
class Internet:
    """All of it."""

    public: Machine
    homes: list[Home]


@contextmanager
def internet(*machines_at_home: int) -> Iterator[Internet]:
    """One with so many machines in its first home, its second, and so on."""
    with ExitStack() as stack:

        def machine(name: str) -> Machine:
            made = Machine(name)
            stack.callback(made.close)
            return made

        switch = machine("internet")
        switch.run("ip", "link", "add", "switch", "type", "bridge")
        switch.run("ip", "link", "set", "switch", "up")
        public = machine("public")
        _plug(public, switch, interface="wan", address=f"{PUBLIC}.1/24")
        homes = []
        for number, size in enumerate(machines_at_home, start=1):
            home = Home(number=number, router=machine(f"router {number}"), host=number + 1)
            homes.append(home)
            _make_router(home, switch)
            for place in range(size):
                inside = machine(f"home {number}, machine {place + 1}")
                _plug(inside, home.router, interface="lan0", address=f"{PRIVATE}.{FIRST_HOST + place}/24")
                inside.run("ip", "route", "add", "default", "via", f"{PRIVATE}.1")
                home.machines.append(inside)
        yield Internet(public=public, homes=homes)


def _make_router(home: Home, switch: Machine) -> None:
    router = home.router
    _plug(router, switch, interface="wan", address=f"{home.outside}/24")
    router.run("ip", "link", "add", "lan", "type", "bridge")
    router.run("ip", "address", "add", f"{PRIVATE}.1/24", "dev", "lan")
    router.run("ip", "link", "set", "lan", "up")
    router.set("ipv4/ip_forward", 1)
    router.run("nft", "-f", "-", given=RULES)


def _plug(machine: Machine, into: Machine, *, interface: str, address: str) -> None:
    """A cable from a machine to another one's only bridge."""
    bridge = "switch" if interface == "wan" else "lan"
    port = f"to{machine.pid}"
    connect(machine, into, names=(interface, port))
    into.run("ip", "link", "set", port, "master", bridge)
    machine.run("ip", "address", "add", address, "dev", interface)


@cache
def why_not() -> str | None:
    """Why this machine can have no such internet; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("unshare", "nsenter", "setpriv", "ip", "nft") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (`make nat` installs them)"
    try:
        with internet(0):
            return None
    except CommandFailedError as error:
        return f"this machine makes no networks: {error}"
