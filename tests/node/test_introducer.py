"""A bootstrap peer: what it says about itself, in its log and to whoever asks, and what nodes make of it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from peerinfer.core.swarm_key import SwarmKey
from peerinfer.core.types import PeerId
from peerinfer.node.introducer import LOOK_S, Introducer
from peerinfer.node.ports import Standing
from peerinfer.sim.network import SimNetwork
from peerinfer.sim.overlay import SimOverlay
from tests.contract.overlay_worlds import RecordingSink

KEY = SwarmKey(b"k" * 32)


class RelayingOverlay(SimOverlay):
    """One whose relay's counts are set by hand."""

    at_work = (0, 0)

    def standing(self) -> Standing:
        reservations, circuits = self.at_work
        return replace(super().standing(), reservations=reservations, circuits=circuits)


async def test_it_tells_how_many_it_has_to_do_with_when_that_changes(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: its operator sees that it is of use. Method: a node joins, circuits come, and an hour passes
    in which nothing changes."""
    caplog.set_level(logging.INFO, "peerinfer.node")
    network = SimNetwork(seed=1)
    overlay = RelayingOverlay(network, PeerId("boot"), topic=None)
    introducer = Introducer(overlay, swarm_key=KEY)
    async with overlay.run(introducer), trio.open_nursery() as nursery:
        nursery.start_soon(introducer.run)
        await trio.sleep(2 * LOOK_S)
        assert not caplog.messages
        async with SimOverlay(network, PeerId("node"), join=overlay.addrs()).run(RecordingSink()):
            await trio.sleep(2 * LOOK_S)
            overlay.at_work = (1, 2)
            await trio.sleep(3600)
            assert introducer.peers()["links"] == [
                {"peer_id": "node", "addrs": ["/memory/node"], "link": "direct"}
            ]
            status = introducer.status()
            assert status["network"] == {
                "links": 1,
                "relayed_links": 0,
                "unreached": [],
                "relays": [],
                "reservations": 1,
                "circuits": 2,
            }
            assert (status["role"], status["swarm_key_id"]) == ("bootstrap", KEY.key_id)
            assert status["uptime_s"] == pytest.approx(3600 + 4 * LOOK_S)
        await trio.sleep(2 * LOOK_S)
        nursery.cancel_scope.cancel()
    told = [line for line in caplog.messages if line.startswith("peers=")]
    assert told == [
        "peers=1 reservations=0 circuits=0",
        "peers=1 reservations=1 circuits=2",
        "peers=0 reservations=1 circuits=2",
    ]
