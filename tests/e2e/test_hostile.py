"""Garbage on every wire of a real node is refused, counted in `status` by kind, and changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from peerinfer.config import OverlayConfig
from peerinfer.core.frame_codec import FRAME_OVERHEAD_BYTES_MAX
from peerinfer.core.frames import Ask, Request
from peerinfer.core.types import PeerId
from peerinfer.node.ports import Call
from peerinfer.overlay.libp2p import LibP2POverlay
from peerinfer.overlay.streams import REQUEST_PROTOCOL
from tests.e2e.processes import PeerProcess, simulated, swarm, wait_until
from tests.e2e.scanners import scan
from tests.overlay.raw_host import raw_host


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PeerProcess]]:
    tmp_path = tmp_path_factory.mktemp("hostile")
    with swarm(tmp_path, 2, args=simulated(tmp_path, prefill_tokens_per_s=4000)) as nodes:
        yield nodes


class Liar:
    """An OverlaySink whose every answer is garbage."""

    def gossip(self, peer: PeerId, payload: bytes) -> None: ...

    def link_up(self, peer: PeerId) -> None: ...

    def link_down(self, peer: PeerId) -> None: ...

    async def serve_call(self, call: Call, opening: Request | Ask) -> None: ...

    def hello(self) -> bytes:
        return b"\xa1\x61v\x01 and then nonsense"

    def dropped(self, kind: str, peer: PeerId | None, reason: str) -> None: ...


def _dropped(node: PeerProcess, kind: str) -> int:
    return int(node.json("status")["dropped"][kind])


async def test_garbage_snapshots_are_counted_whether_published_or_pulled(
    two: list[PeerProcess], tmp_path: Path
) -> None:
    """Method: a peer on the right topic, with a valid identity, whose messages and hello do not decode."""
    node = two[0]
    before = node.json("status")
    liar = LibP2POverlay(
        data_dir=tmp_path,
        config=replace(OverlayConfig(), listen=("/ip4/127.0.0.1/tcp/0",), join=(node.addr,)),
        topic=f"peerinfer/1/{before['fingerprint']}",
        frame_bytes_max=FRAME_OVERHEAD_BYTES_MAX,
    )
    async with liar.run(Liar()):
        with trio.fail_after(30):
            while _dropped(node, "gossip") < before["dropped"]["gossip"] + 3:
                await liar.publish(b"\xff" * 100)
                await trio.sleep(0.1)
            while _dropped(node, "snapshot") <= before["dropped"]["snapshot"]:
                await trio.sleep(0.1)
        assert liar.peer_id not in node.peers()
    _unharmed(two, before)


@pytest.mark.parametrize("garbage", [b"\x05hello", b"\xff" * 200, b"\x00", b"\x04\xa1\x61t\x00"])
async def test_garbage_on_the_request_protocol_costs_its_stream(
    two: list[PeerProcess], garbage: bytes
) -> None:
    node = two[0]
    before = node.json("status")
    async with raw_host() as attacker:
        peer = await attacker.connect(node.addr)
        stream = await attacker.open(peer, REQUEST_PROTOCOL)
        await stream.write(garbage)
        with trio.fail_after(30):
            while _dropped(node, "request") <= before["dropped"]["request"]:
                await trio.sleep(0.1)
    _unharmed(two, before)


def test_what_scanners_send_to_any_port_is_counted_and_changes_nothing_else(two: list[PeerProcess]) -> None:
    before = two[0].json("status")
    scan(two[0])
    _unharmed(two, before)


def _unharmed(nodes: list[PeerProcess], before: dict[str, object]) -> None:
    """The node serves as before, and its real peer is still its peer."""
    node, peer = nodes
    after = node.json("status")
    for field in ("incarnation", "engine_state", "requests"):
        assert after[field] == before[field]
    wait_until(lambda: peer.peer_id in node.alive_peers(), within_s=5, what="the real peer is alive")
    answer = node.client.post("/v1/completions", json={"model": "simulated", "prompt": "a", "max_tokens": 1})
    assert answer.status_code == 200
    wait_until(
        lambda: node.json("status")["load"]["running"] == 0, within_s=5, what="nothing is left running"
    )
