"""The UPnP of a router at home: the real miniupnpd on top of the router's netfilter rules."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.processes import wait_until
from tests.nat.internet import PRIVATE, Home

TABLE = "upnp"
RULES = f"""
table inet {TABLE} {{
    chain forward {{
        type filter hook forward priority -1; policy accept;
        jump miniupnpd
    }}
    chain prerouting {{
        type nat hook prerouting priority dstnat; policy accept;
        jump prerouting_miniupnpd
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat - 1; policy accept;
        jump postrouting_miniupnpd
    }}
    chain miniupnpd {{ }}
    chain prerouting_miniupnpd {{ }}
    chain postrouting_miniupnpd {{ }}
}}
"""
CONFIG = f"""
ext_ifname=wan
listening_ip=lan
port=0
enable_upnp=yes
enable_natpmp=no
secure_mode=yes
system_uptime=yes
notify_interval=60
min_lifetime=1
max_lifetime=86400
upnp_table_name={TABLE}
upnp_nat_table_name={TABLE}
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
uuid=00000000-0000-0000-0000-0000000000%02d
allow 1024-65535 {PRIVATE}.0/24 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""


class UpnpRouter:
    """One that may be restarted, as when somebody pulls its plug."""

    def __init__(self, home: Home, directory: Path) -> None:
        self._router, self._directory = home.router, directory
        directory.mkdir(parents=True, exist_ok=True)
        self._config = directory / "miniupnpd.conf"
        self._config.write_text(CONFIG % home.number)
        self.log = directory / "miniupnpd.log"
        self._router.run("nft", "-f", "-", given=RULES)
        self.start()

    def start(self) -> None:
        """Have it answer; it knows nothing of earlier mappings."""
        with self.log.open("ab") as log:
            command = ("miniupnpd", "-d", "-f", str(self._config), "-P", str(self._directory / "pid"))
            self._process = subprocess.Popen(self._router.within(*command), stdout=log, stderr=log)
        wait_until(lambda: "listening on" in self.log.read_text(), within_s=10, what="miniupnpd listens")

    def stop(self) -> None:
        """Pull the plug: what it forwards is forgotten."""
        self._process.kill()
        self._process.wait()
        for chain in ("miniupnpd", "prerouting_miniupnpd", "postrouting_miniupnpd"):
            self._router.run("nft", "flush", "chain", "inet", TABLE, chain)

    def forwarded(self) -> dict[int, str]:
        """From its ports outside to the addresses inside, by the rules that netfilter has."""
        rules = self._router.run("nft", "list", "chain", "inet", TABLE, "prerouting_miniupnpd")
        found = re.findall(r"dport (\d+) dnat ip to ([0-9.:]+)", rules)
        return {int(port): inside for port, inside in found}


@contextmanager
def upnp_router(home: Home, directory: Path) -> Iterator[UpnpRouter]:
    """A home's router with UPnP, which is stopped at the end."""
    router = UpnpRouter(home, directory)
    try:
        yield router
    finally:
        router.stop()
