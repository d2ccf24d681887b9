"""Nodes behind the program that routers at home run for UPnP: what they ask of it, and what comes of it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.processes import wait_until
from tests.nat.internet import PRIVATE, internet, why_not
from tests.nat.nodes import PORT, TwoHomes, connected_to, swarm, wait_until_all_know_all
from tests.nat.upnp_router import UpnpRouter, upnp_router

WHY_NOT = why_not() or (None if shutil.which("miniupnpd") else "not installed: miniupnpd")
pytestmark = [pytest.mark.nat, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

MEET_S = 40.0
"""Generous; a node looks for routers for 2 s, and tells a new address within 10 s."""


@dataclass(slots=True)
class World(TwoHomes):
    """Alice and Bob live behind the router that speaks UPnP, Carol behind one that does not."""

    router: UpnpRouter

    def wait_until_carol_has_dialled(self) -> None:
        """Both of the others, at their router's address."""
        (machine,), outside = self.net.homes[1].machines, self.net.homes[0].outside
        wait_until(
            lambda: connected_to(machine).count(outside) == 2,
            within_s=MEET_S,
            what="two connections into the home that forwards ports",
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("upnp")
    with (
        internet(2, 1) as net,
        upnp_router(net.homes[0], directory / "router") as router,
        swarm(directory, net.public) as made,
    ):
        alice, bob = made.start_all(net.homes[0].machines, "--upnp")
        carol = made.start(net.homes[1].machines[0])
        yield World(net, made, alice, bob, carol, router)


def test_forwarded_ports_are_dialled_from_outside_and_need_no_relay(world: World) -> None:
    """Two nodes of one home that listen on the same port get two ports outside. They were linked with the
    other home through the relay before their router had answered; without a relay that link goes on."""
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    inside = {f"{PRIVATE}.10:{PORT}", f"{PRIVATE}.11:{PORT}"}
    wait_until(lambda: set(world.router.forwarded().values()) == inside, within_s=MEET_S, what="two ports")
    assert PORT in world.router.forwarded()
    world.wait_until_carol_has_dialled()
    world.swarm.bootstrap.kill()
    for node in (world.alice, world.bob):
        answer = world.carol.client.post(
            "/v1/completions",
            json={"model": "simulated", "prompt": "Who is there?", "max_tokens": 3},
            headers={"x-peerinfer-target": node.peer_id},
        )
        assert answer.headers["x-peerinfer-served-by"] == node.peer_id
        assert world.carol.peer_id in node.alive_peers()
        assert f"{world.carol.peer_id[-6:]} state=lost" not in node.log.read_text()
    world.swarm.start_bootstrap()


def test_a_router_that_was_restarted_is_asked_again(world: World) -> None:
    """It has forgotten what it forwarded. Method: the other home's node begins anew, and gets through."""
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    before = world.router.forwarded()
    world.router.stop()
    assert not world.router.forwarded()
    world.router.start()
    wait_until(lambda: world.router.forwarded() == before, within_s=MEET_S, what="the same two ports")
    world.carol.kill()
    world.carol = world.swarm.start(world.net.homes[1].machines[0])
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    world.wait_until_carol_has_dialled()


def test_a_router_that_gets_another_address_is_found_there(world: World) -> None:
    """As every night at many a provider: all connections die, and nobody says a word."""
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    world.net.homes[0].move(20)
    world.wait_until_carol_has_dialled()
    wait_until_all_know_all(world.nodes, within_s=MEET_S)


def test_a_node_that_leaves_gives_its_port_back(world: World) -> None:
    for left, node in enumerate((world.bob, world.alice)):
        node.signal(signal.SIGTERM)
        assert node.process.wait(MEET_S) == 0
        assert len(world.router.forwarded()) == 1 - left
    for node in world.nodes:
        assert "Traceback" not in node.log.read_text()
