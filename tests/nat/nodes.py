"""Real `peerinfer` processes on the machines of a made internet, and who is connected to whom."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from peerinfer.cli.key import write_swarm_key
from peerinfer.core.swarm_key import SwarmKey
from tests.e2e.processes import PeerProcess, wait_until
from tests.nat.internet import Internet
from tests.nat.machine import Machine

PORT = 4001
"""Of every node: with the same addresses in all homes, what one announces is another's own."""
LISTEN = f"/ip4/0.0.0.0/tcp/{PORT}"


class Swarm:
    """A closed swarm: a bootstrap peer on the public machine, and nodes wherever they are started."""

    def __init__(self, directory: Path, public: Machine) -> None:
        self._directory, self._public = directory, public
        key, config = directory / "swarm.key", directory / "node.toml"
        write_swarm_key(key, SwarmKey(os.urandom(32)))
        config.write_text(
            '[engine]\nkind = "simulated"\nsimulated_prefill_tokens_per_s = 4000\n'
            "simulated_decode_tokens_per_s = 40\n[overlay]\nupnp_renew_s = 2\n"
        )
        self._key = ("--swarm-key", str(key))
        self._args = (*self._key, "--config", str(config), "--allow-overrides")
        self._alive: list[PeerProcess] = []
        self._starters = ThreadPoolExecutor()  # which must outlive what they start
        self.bootstrap = self.start_bootstrap()

    def start_bootstrap(self) -> PeerProcess:
        """The peer that all join by; again under the same identity."""
        self.bootstrap = PeerProcess(
            self._directory / "bootstrap",
            args=self._key,
            listen=LISTEN,
            bootstrap=True,
            within=self._public.within(),
        )
        self._alive.append(self.bootstrap)
        return self.bootstrap

    def start(self, machine: Machine, *more: str) -> PeerProcess:
        """A node; again under the same identity."""
        node = PeerProcess(
            self._directory / machine.name.replace(" ", "-"),
            join=self.bootstrap.addr,
            args=(*self._args, *more),
            listen=LISTEN,
            within=machine.within(),
            transport=machine.transport(),
        )
        self._alive.append(node)
        return node

    def start_all(self, machines: Sequence[Machine], *more: str) -> list[PeerProcess]:
        """A node on each, side by side."""
        return list(self._starters.map(lambda machine: self.start(machine, *more), machines))

    def kill_all(self) -> None:
        """The end."""
        for process in self._alive:
            process.kill()
        self._starters.shutdown()


@dataclass(slots=True)
class TwoHomes:
    """A node of each name: Alice and Bob are neighbours, Carol lives in another home."""

    net: Internet
    swarm: Swarm
    alice: PeerProcess
    bob: PeerProcess
    carol: PeerProcess

    @property
    def nodes(self) -> list[PeerProcess]:
        return [self.alice, self.bob, self.carol]


@contextmanager
def swarm(directory: Path, public: Machine) -> Iterator[Swarm]:
    """One that begins with its bootstrap peer, and ends whatever happens."""
    made = Swarm(directory, public)
    try:
        yield made
    finally:
        made.kill_all()


def wait_until_all_know_all(nodes: Sequence[PeerProcess], *, within_s: float) -> float:
    """Until each takes all others for alive; how long that took."""
    ids = {node.peer_id for node in nodes}
    return wait_until(
        lambda: all(ids - {node.peer_id} <= node.alive_peers() for node in nodes),
        within_s=within_s,
        what="all know all",
    )


def connected_to(machine: Machine) -> list[str]:
    """The addresses of the other ends of a machine's connections, loopback aside."""
    lines = machine.run("ss", "-Htn", "state", "established").splitlines()
    ends = [line.split()[3].rpartition(":")[0] for line in lines]
    return sorted(end for end in ends if not end.startswith("127."))
