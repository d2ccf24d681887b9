"""Routers that forget connections: by a short memory for silent ones, or all at once with a new address."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.e2e.processes import PeerProcess, wait_until
from tests.nat.internet import Internet, internet, why_not
from tests.nat.nodes import Swarm, swarm, wait_until_all_know_all
from tests.nat.requests import new_prompt, stream_text, warm

pytestmark = [pytest.mark.nat, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

MEET_S = 40.0
"""Generous: these machines are small and shared."""
FOR_EVER = 432_000
"""Linux's five days."""


@dataclass(slots=True)
class World:
    """Alice lives in one home, Carol in another."""

    net: Internet
    swarm: Swarm
    alice: PeerProcess
    carol: PeerProcess

    @property
    def nodes(self) -> list[PeerProcess]:
        return [self.alice, self.carol]

    def remember(self, seconds: int) -> None:
        for home in self.net.homes:
            home.remember(seconds)

    def losses(self) -> int:
        """How many links were lost, as all sides tell it."""
        logs = (process.log.read_text() for process in (*self.nodes, self.swarm.bootstrap))
        return sum(log.count("state=lost") for log in logs)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with internet(1, 1) as net, swarm(tmp_path_factory.mktemp("forgetful"), net.public) as made:
        alice, carol = made.start_all([home.machines[0] for home in net.homes])
        yield World(net, made, alice, carol)


def test_pings_keep_links_in_the_memory_of_a_router(world: World) -> None:
    """It remembers silent connections for twice the time between pings. Method: three times as long."""
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    world.remember(4)
    before = world.losses()
    time.sleep(12)
    assert world.losses() == before
    assert world.alice.alive_peers() == {world.carol.peer_id}


def test_links_that_a_router_forgot_are_found_dead_and_made_anew(world: World) -> None:
    """It remembers them for half the time between pings, so that each dies; until it is mended."""
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    before = world.losses()
    world.remember(1)
    wait_until(lambda: world.losses() - before >= 4, within_s=MEET_S, what="both links lost, at both ends")
    world.remember(FOR_EVER)
    wait_until_all_know_all(world.nodes, within_s=2 * MEET_S)
    expected = warm(world.carol, new_prompt(1), known_at=world.alice)
    served_by: queue.Queue[str] = queue.Queue()
    assert stream_text(world.alice, new_prompt(1), begun=served_by.put) == expected
    assert served_by.get() == world.carol.peer_id


def test_a_home_that_gets_another_address_in_the_middle_of_an_answer_costs_no_token(world: World) -> None:
    """The connection that it comes through is dead, and nobody says so."""
    world.remember(FOR_EVER)
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    before = world.losses()
    expected = warm(world.carol, new_prompt(2), known_at=world.alice)
    served_by: queue.Queue[str] = queue.Queue()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(stream_text, world.alice, new_prompt(2), begun=served_by.put)
        assert served_by.get(timeout=MEET_S) == world.carol.peer_id
        world.net.homes[1].move(20)
        assert answer.result() == expected
    wait_until(lambda: world.losses() > before, within_s=MEET_S, what="the old links are found dead")
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    for node in world.nodes:
        assert "Traceback" not in node.log.read_text()
