"""Two homes behind real NAT and a bootstrap peer that both can reach: one swarm all the same.

All addresses of the one home exist in the other, too, and all nodes listen on the same port.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.processes import wait_until
from tests.nat.internet import PRIVATE, PUBLIC, internet, why_not
from tests.nat.nodes import TwoHomes, connected_to, swarm, wait_until_all_know_all
from tests.nat.requests import new_prompt, stream_text, warm

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

MEET_S = 30.0
"""Generous: these machines are small and shared."""
RELAY = f"{PUBLIC}.1"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHomes]:
    with internet(2, 1) as net, swarm(tmp_path_factory.mktemp("nat"), net.public) as made:
        nodes = made.start_all([*net.homes[0].machines, *net.homes[1].machines])
        yield TwoHomes(net, made, *nodes)


def test_neighbours_are_linked_directly_and_homes_through_the_relay(world: TwoHomes) -> None:
    """Nobody stands between two of one home, and nothing gets into a home that it did not ask for. Method:
    the kernels' own lists of connections."""
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    (alice, bob), (carol,) = (home.machines for home in world.net.homes)
    expected = {alice: {f"{PRIVATE}.11", RELAY}, bob: {f"{PRIVATE}.10", RELAY}, carol: {RELAY}}
    wait_until(
        lambda: all(set(connected_to(machine)) == others for machine, others in expected.items()),
        within_s=MEET_S,
        what="neighbours are connected, and homes are not",
    )
    links = {world.bob.peer_id: "direct", world.carol.peer_id: "relayed"}
    wait_until(
        lambda: {peer_id: peer["link"] for peer_id, peer in world.alice.peers().items()} == links,
        within_s=MEET_S,
        what="a link of each kind",
    )


def test_a_prompt_goes_to_the_home_that_has_its_prefix_and_streams_back(world: TwoHomes) -> None:
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    expected = warm(world.carol, new_prompt(1), known_at=world.alice)
    served_by: queue.Queue[str] = queue.Queue()
    assert stream_text(world.alice, new_prompt(1), begun=served_by.put) == expected
    assert served_by.get() == world.carol.peer_id


def test_a_node_that_is_killed_in_another_home_costs_no_token_and_comes_back(world: TwoHomes) -> None:
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    expected = warm(world.carol, new_prompt(2), known_at=world.alice)
    served_by: queue.Queue[str] = queue.Queue()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(stream_text, world.alice, new_prompt(2), begun=served_by.put)
        assert served_by.get(timeout=MEET_S) == world.carol.peer_id
        world.carol.kill()
        assert answer.result() == expected
    wait_until(
        lambda: world.carol.peer_id not in world.alice.alive_peers(), within_s=MEET_S, what="it is missed"
    )
    world.carol = world.swarm.start(world.net.homes[1].machines[0])
    wait_until_all_know_all(world.nodes, within_s=MEET_S)


def test_homes_find_each_other_again_when_their_relay_was_gone(world: TwoHomes) -> None:
    """It keeps nothing of its reservations. Neighbours keep their link meanwhile."""
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    world.swarm.bootstrap.kill()
    wait_until(
        lambda: not world.carol.alive_peers() and world.alice.alive_peers() == {world.bob.peer_id},
        within_s=MEET_S,
        what="the homes are parted",
    )
    world.swarm.start_bootstrap()
    wait_until_all_know_all(world.nodes, within_s=2 * MEET_S)
    for node in world.nodes:
        assert "Traceback" not in node.log.read_text()


def test_nobody_dials_a_router_that_forwards_nothing(world: TwoHomes) -> None:
    """Others see a home's connections come from its router's address, where no node is reached: all that has
    happened here has let nobody try. Method: the routers' own counts."""
    wait_until_all_know_all(world.nodes, within_s=MEET_S)
    assert [home.unasked() for home in world.net.homes] == [0, 0]
