"""A node behind a router that speaks UPnP is reached at the router's address, for as long as it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from peerinfer.overlay import host, upnp
from peerinfer.overlay.upnp import TRIED_MAX, PortMapping
from tests.contract.overlay_worlds import LibP2PWorld, until
from tests.contract.test_overlay_contract import SOON_S
from tests.overlay.fake_router import LOOPBACK, Router, fake_router


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[Router]:
    monkeypatch.setattr(upnp, "INTERFACE", LOOPBACK)
    monkeypatch.setattr(upnp, "DISCOVER_MS", 300)
    with fake_router() as found:
        yield found


async def test_the_address_outside_is_announced_and_the_port_given_back(
    world: LibP2PWorld, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "ADDRESSES_KNOWN_S", 0.1)
    peer = await world.start(upnp=True)
    port = int(peer.address.split("/")[4])
    await until(lambda: f"/ip4/8.8.4.4/tcp/{port}/p2p/{peer.id}" in peer.overlay.addrs(), within_s=SOON_S)
    assert router.forwarded == {port: (LOOPBACK, port)}
    assert len(peer.overlay.addrs()) == 2, "and inside it is still reached where it listens"
    await world.stop(peer)
    assert not router.forwarded


async def test_a_port_that_another_machine_has_is_passed_over(router: Router) -> None:
    router.taken |= {4001, 4002}
    assert await addrs_of(PortMapping(renew_s=60.0)) == ("/ip4/8.8.4.4/tcp/4003",)
    assert router.actions.count("AddPortMapping") == 3


@pytest.mark.parametrize("outside", ["192.168.7.1", "100.64.0.9", "2606:4700::1", "", "none"])
async def test_behind_a_second_router_nothing_is_announced(router: Router, outside: str) -> None:
    router.outside = outside
    assert await addrs_of(PortMapping(renew_s=60.0)) == ()
    assert not router.forwarded


async def test_a_router_that_refuses_is_tried_a_few_times_and_told_once(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    router.taken |= set(range(65536))
    mapping = PortMapping(renew_s=0.0)
    with caplog.at_level("INFO", logger="peerinfer.overlay"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mapping.run, [4001])
            await until(lambda: router.actions.count("AddPortMapping") > TRIED_MAX, within_s=SOON_S)
            nursery.cancel_scope.cancel()
    assert len([record for record in caplog.records if "upnp=none" in record.getMessage()]) == 1


async def test_a_lease_is_renewed_and_an_address_that_changed_announced(router: Router) -> None:
    mapping = PortMapping(renew_s=0.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mapping.run, [4001])
        await until(lambda: router.actions.count("AddPortMapping") >= 2, within_s=SOON_S)
        await until(lambda: mapping.addrs == ("/ip4/8.8.4.4/tcp/4001",), within_s=SOON_S)
        router.outside = "9.9.9.9"
        await until(lambda: mapping.addrs == ("/ip4/9.9.9.9/tcp/4001",), within_s=SOON_S)
        nursery.cancel_scope.cancel()
    assert not router.forwarded


async def test_without_a_router_the_node_runs_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upnp, "INTERFACE", LOOPBACK)
    monkeypatch.setattr(upnp, "DISCOVER_MS", 50)
    assert await addrs_of(PortMapping(renew_s=60.0)) == ()


async def addrs_of(mapping: PortMapping) -> tuple[str, ...]:
    """What is announced after the router was asked once."""
    told = ""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mapping.run, [4001])
        await until(lambda: bool(mapping._told), within_s=SOON_S)
        told, addrs = mapping._told, mapping.addrs
        nursery.cancel_scope.cancel()
    assert told.startswith("upnp=")
    return addrs
