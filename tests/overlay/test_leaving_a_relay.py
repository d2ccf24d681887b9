"""A detour through a relay is left once there is a direct way, and costs no answer that runs over it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from peerinfer.overlay import links as links_module
from peerinfer.overlay.host import abort, is_relayed
from peerinfer.overlay.libp2p import LibP2POverlay
from peerinfer.overlay.streams import Streams
from tests.contract.overlay_worlds import LibP2PWorld, until
from tests.contract.test_overlay_contract import SOON_S, answer, request
from tests.overlay.peer_process import DATA_FRAMES
from tests.overlay.relayed import connections, linked_through
from tests.overlay.test_hardening import assert_gossip_flows, host_of


async def test_a_relay_is_left_when_the_far_end_can_be_dialled(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a router forwards a port at last. The link is never down, new calls go the direct way at once,
    and gossip when the detour is closed."""
    monkeypatch.setattr(links_module, "RELAYED_STILL_S", 0.5)
    relay, a, b = await linked_through(world)
    assert len(await answer(a, b.id, request("r1"))) == DATA_FRAMES + 2
    (listener,) = host_of(b).network.listeners.values()
    a.overlay.learn(b.id, [str(listener.get_addrs()[0])])
    await until(lambda: not all(map(is_relayed, connections(a, b.id))), within_s=SOON_S)
    assert len(await answer(a, b.id, request("r2"))) == DATA_FRAMES + 2
    for here, there in ((a, b.id), (b, a.id)):
        await until(lambda: not any(map(is_relayed, connections(here, there))), within_s=SOON_S)  # noqa: B023
    await world.stop(relay)
    await assert_gossip_flows(a, b)
    assert len(await answer(b, a.id, request("r3"))) == DATA_FRAMES + 2
    for peer, other in ((a, b), (b, a)):
        assert peer.linked_to(other.id)
        assert other.id not in peer.sink.down


async def test_an_answer_that_runs_over_a_relay_keeps_it_open(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot go on elsewhere (tools, a grammar) would be lost for a shorter way. Method: an answer that
    never ends, and whose client leaves."""
    monkeypatch.setattr(links_module, "RELAYED_STILL_S", 0.05)
    looks: Counter[bool] = Counter()
    carries_calls = Streams.carries_calls

    def look(streams: Streams, connection: Any) -> bool:
        carries = carries_calls(streams, connection)
        looks[carries] += 1
        return carries

    monkeypatch.setattr(Streams, "carries_calls", look)
    _, a, b = await linked_through(world)
    async with a.overlay.open_call(b.id) as call:
        await call.send(request("r1", endless=True))
        for _ in range(DATA_FRAMES + 1):
            await call.receive()
        (listener,) = host_of(b).network.listeners.values()
        a.overlay.learn(b.id, [str(listener.get_addrs()[0])])
        await until(lambda: looks[True] > 10, within_s=SOON_S)
        assert not looks[False]
        assert any(map(is_relayed, connections(a, b.id)))
    for here, there in ((a, b.id), (b, a.id)):
        await until(lambda: not any(map(is_relayed, connections(here, there))), within_s=SOON_S)  # noqa: B023


async def test_what_is_new_goes_the_direct_way_though_the_relayed_one_came_last(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one side dials while the other, who cannot, is on its way through the relay. Calls one after
    the other would keep that open for an hour."""
    monkeypatch.setattr(links_module, "RELAYED_STILL_S", 0.1)
    relay, a, b = await linked_through(world)
    (listener,) = host_of(b).network.listeners.values()
    a.overlay.learn(b.id, [str(listener.get_addrs()[0])])
    await until(lambda: not any(map(is_relayed, connections(a, b.id))), within_s=3 * SOON_S)
    monkeypatch.setattr(links_module, "RELAYED_STILL_S", 3600.0)
    assert isinstance(a.overlay, LibP2POverlay)
    assert a.overlay._swarm is not None
    (direct,) = connections(a, b.id)
    await a.overlay._swarm._circuits.dial(b.id, f"/p2p/{relay.id}/p2p-circuit")
    async with a.overlay.open_call(b.id) as call:
        await call.send(request("r1"))
        await call.receive()
        carrying = [each for each in connections(a, b.id) if a.overlay._swarm.streams.carries_calls(each)]
        assert carrying == [direct]
        for _ in range(DATA_FRAMES + 1):
            await call.receive()


async def test_a_direct_connection_that_dies_behind_a_relayed_one_is_made_anew(world: LibP2PWorld) -> None:
    """As when a home gets another address: its nodes come through the relay before the others have found
    their old connections dead, so that the link is never down. Method: a circuit beside a direct connection,
    which is then broken."""
    relay, a, b = await linked_through(world)
    (listener,) = host_of(b).network.listeners.values()
    a.overlay.learn(b.id, [str(listener.get_addrs()[0])])
    await until(lambda: not any(map(is_relayed, connections(a, b.id))), within_s=3 * SOON_S)
    assert isinstance(a.overlay, LibP2POverlay)
    assert a.overlay._swarm is not None
    (direct,) = connections(a, b.id)
    await a.overlay._swarm._circuits.dial(b.id, f"/p2p/{relay.id}/p2p-circuit")
    await abort(direct)
    await until(lambda: not any(map(is_relayed, connections(a, b.id))), within_s=3 * SOON_S)
    assert direct not in connections(a, b.id)
    assert b.id not in a.sink.down
