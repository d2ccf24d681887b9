"""Starting and stopping: ports, double connections, leaving in time and leaving nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from libp2p import generate_new_rsa_identity
from libp2p.network.exceptions import SwarmException

from peerinfer.config import OverlayConfig
from peerinfer.core.types import PeerId
from peerinfer.overlay.addresses import AddressInUseError
from peerinfer.overlay.host import abort
from peerinfer.overlay.libp2p import LibP2POverlay
from tests.contract.overlay_worlds import LibP2PWorld, RecordingSink, until
from tests.contract.test_overlay_contract import SOON_S, answer, request, start_linked
from tests.overlay.peer_process import DATA_FRAMES
from tests.overlay.raw_host import raw_host
from tests.overlay.test_hardening import assert_gossip_flows, free_port, host_of


def overlay(data_dir: Path, **config: object) -> LibP2POverlay:
    return LibP2POverlay(
        data_dir=data_dir,
        config=OverlayConfig(**config),  # type: ignore[arg-type]
        topic=None,
        frame_bytes_max=1000,
    )


async def test_a_port_that_is_taken_is_an_error(world: LibP2PWorld, tmp_path: Path) -> None:
    a = await world.start()
    port = a.address.split("/")[4]
    with pytest.raises(AddressInUseError, match=port):
        async with overlay(tmp_path / "b", listen=(f"/ip4/127.0.0.1/tcp/{port}",)).run(RecordingSink()):
            pass


def test_a_bad_address_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="multiaddr"):
        overlay(tmp_path, join=("nonsense",))
    with pytest.raises(ValueError, match="listen"):
        overlay(
            tmp_path,
            listen=("/ip4/127.0.0.1/tcp/1/ws",),
        )


async def test_a_cancelled_node_leaves_its_port_and_its_links(world: LibP2PWorld, tmp_path: Path) -> None:
    """Goal: cancelling is leaving. Method: cancel the scope around run, start again on the same port."""
    a = await world.start()
    port = await free_port()
    listen = (f"/ip4/127.0.0.1/tcp/{port}",)
    for life in (1, 2):
        node = overlay(tmp_path / "b", listen=listen, join=(a.address,))
        with trio.CancelScope() as scope:
            async with node.run(RecordingSink()):
                await until(lambda: a.linked_to(node.peer_id), within_s=SOON_S)  # noqa: B023
                scope.cancel()
                await trio.sleep_forever()
        await until(lambda: a.sink.down.count(node.peer_id) == life, within_s=SOON_S)  # noqa: B023


async def test_leaving_takes_a_few_seconds_at_most(world: LibP2PWorld) -> None:
    peers = await start_linked(world, 4)
    with trio.fail_after(5):
        await world.stop(peers[0])
    for peer in peers[1:]:
        await until(lambda peer=peer: peer.sink.down == [peers[0].id], within_s=SOON_S)  # type: ignore[misc]


async def test_two_that_dial_each_other_at_once_hold_one_link(world: LibP2PWorld, tmp_path: Path) -> None:
    """Goal: up once, down once, however many connections. Method: dial both ways; close one by one."""
    a, b = await start_linked(world)
    for one, other in ((a, b), (b, a)):
        links = one.overlay._swarm.links  # type: ignore[attr-defined]
        await one.overlay._swarm._dial(other.id, other.address.rsplit("/p2p/", 1)[0])  # type: ignore[attr-defined]
    connections = list(links._connections(a.id))
    assert len(connections) == 3
    for connection in connections[1:]:
        await abort(connection)
    await trio.sleep(1.5)
    assert len(await answer(a, b.id, request("r1"))) == DATA_FRAMES + 2
    assert (a.sink.up, a.sink.down) == ([b.id], [])
    assert (b.sink.up, b.sink.down) == ([a.id], [])
    await abort(connections[0])
    await until(lambda: a.sink.down == [b.id] and b.sink.down == [a.id], within_s=SOON_S)
    await until(lambda: a.linked_to(b.id) and b.linked_to(a.id), within_s=SOON_S)


async def test_a_peer_without_a_topic_introduces_the_others(world: LibP2PWorld, tmp_path: Path) -> None:
    """Goal: a bootstrap peer needs no gossip. Method: two join by it, link up and gossip without it."""
    bootstrap = overlay(tmp_path / "bootstrap", listen=("/ip4/127.0.0.1/tcp/0",))
    async with bootstrap.run(RecordingSink()):
        (address,) = bootstrap.addrs()
        a, b = await world.start(join=[address]), await world.start(join=[address])
        await until(lambda: a.linked_to(b.id, bootstrap.peer_id), within_s=SOON_S)
        with trio.fail_after(SOON_S):
            while not b.sink.messages:
                await a.overlay.publish(b"hello")
                await trio.sleep(0.3)
        assert host_of(a).dht.routing_table.size() >= 1


async def test_a_peer_with_an_rsa_identity_can_be_joined(world: LibP2PWorld) -> None:
    async with raw_host(generate_new_rsa_identity()) as other:
        assert other.id.startswith("Qm")
        node = await world.start(join=[str(other.host.get_addrs()[0])])
        await until(lambda: node.linked_to(other.id), within_s=SOON_S)


async def test_what_is_announced_is_told_in_place_of_where_a_node_listens(tmp_path: Path) -> None:
    """Goal: nodes behind forwarded ports are found. Method: who was joined knows only what it was told."""
    told = f"/ip4/127.0.0.1/tcp/{await free_port()}"
    found = overlay(tmp_path / "a", listen=("/ip4/127.0.0.1/tcp/0",))
    async with found.run(RecordingSink()):
        behind = overlay(
            tmp_path / "b", listen=("/ip4/127.0.0.1/tcp/0",), announce=(told,), join=found.addrs()
        )
        async with behind.run(RecordingSink()):
            assert behind.addrs() == (f"{told}/p2p/{behind.peer_id}",)
            with trio.fail_after(SOON_S):
                while not (link := found.links().get(behind.peer_id)) or not link.addrs:
                    await trio.sleep(0.01)
            assert link.addrs == (told,)


async def test_who_leaves_lets_nobody_in_any_more(world: LibP2PWorld) -> None:
    """Goal: a peer that notices it first, and dials at once, does not hold a link to who is gone."""
    a, b = await start_linked(world)
    a.overlay._swarm._leaving = True  # type: ignore[attr-defined]
    async with raw_host() as late:
        with pytest.raises(SwarmException):
            await late.connect(a.address)
        assert not a.linked_to(late.id)
    assert a.linked_to(b.id)
    assert set(a.sink.drops) == {"handshake"}


async def test_the_last_that_a_peer_says_is_heard_before_it_is_gone(world: LibP2PWorld) -> None:
    """Goal: who says goodbye does not look as if it had crashed. Method: it leaves as soon as that is said;
    whoever reads the end of a connection together with what came before it hears only the end."""
    a = await world.start()
    for number in range(3):
        b = await world.start(join=[a.address])
        await until(lambda b=b: a.linked_to(b.id), within_s=SOON_S)  # type: ignore[misc]
        await assert_gossip_flows(b, a)
        goodbye = b"goodbye %d" % number
        await b.overlay.publish(goodbye)
        await world.stop(b)
        await until(lambda b=b, said=goodbye: (b.id, said) in a.sink.messages, within_s=SOON_S)  # type: ignore[misc]


async def test_an_address_of_ones_own_leads_to_nobody_else(
    world: LibP2PWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: homes have the same private networks, so what a peer of another home announces may be this node's
    own address: nobody dials itself, and counts itself among the strangers, for that."""
    a = await world.start()
    address = a.address.partition("/p2p/")[0]
    with caplog.at_level("INFO", logger="peerinfer.overlay"):
        a.overlay.learn(PeerId("12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X"), [address])
        await until(lambda: "state=unreachable" in caplog.text, within_s=SOON_S)
    assert f"{address}: that is this node's own address" in caplog.text
    assert not a.sink.drops
