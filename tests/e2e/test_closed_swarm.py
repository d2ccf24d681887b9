"""A closed swarm of real processes: members share prefixes, strangers get one clear line and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from peerinfer.cli.key import write_swarm_key
from peerinfer.core.swarm_key import SwarmKey
from peerinfer.overlay.swarm_stream import NO_MEMBER
from tests.e2e.processes import PeerProcess, simulated, swarm, wait_until
from tests.e2e.scanners import scan

TOLD_WITHIN_S = 5.0
PROMPT = "In a closed swarm nobody reads what is not meant for them. " * 8


def key_file(path: Path) -> tuple[str, str]:
    """The option that gives a new key."""
    write_swarm_key(path, SwarmKey(os.urandom(32)))
    return ("--swarm-key", str(path))


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PeerProcess]]:
    tmp_path = tmp_path_factory.mktemp("closed")
    key = key_file(tmp_path / "swarm.key")
    options = simulated(tmp_path, *key, "--allow-overrides", prefill_tokens_per_s=4000)
    with swarm(tmp_path, 2, args=options) as nodes:
        yield nodes


def complete(node: PeerProcess, *, at: PeerProcess) -> tuple[int, int]:
    """Have the prompt completed at a node; how many tokens were expected in its cache, and how many were."""
    body = {"model": "simulated", "prompt": PROMPT, "max_tokens": 2}
    answer = node.client.post("/v1/completions", json=body, headers={"x-peerinfer-target": at.peer_id})
    answer.raise_for_status()
    expected = int(answer.headers["x-peerinfer-expected-cached-tokens"])
    return expected, int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_members_share_prefixes(members: list[PeerProcess]) -> None:
    """Goal: salted keys mean the same to all members. Method: one computes a prompt, the other asks it."""
    first, second = members
    assert complete(first, at=first) == (0, 0)
    key_ids = {node.json("status")["swarm_key_id"] for node in members}
    assert len(key_ids) == 1
    assert None not in key_ids
    wait_until(lambda: second.peers()[first.peer_id]["pages"] > 0, within_s=10, what="its pages are known")
    expected, cached = complete(second, at=first)
    assert expected == cached > 0
    for node in members:
        assert "closed swarm" not in node.log.read_text(), "no log shows a prompt"


def test_an_invite_is_all_that_a_new_member_needs(members: list[PeerProcess], tmp_path: Path) -> None:
    """Method: the command prints it for a running member; a third node joins by it and has no key file."""
    member = members[0]
    key = ("--swarm-key", str(member.data_dir.parent / "swarm.key"))
    command = [sys.executable, "-m", "peerinfer", "invite", *key, "--api", member.http]
    invite = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    guest = PeerProcess(tmp_path / "guest", join=invite, args=simulated(tmp_path))
    try:
        wait_until(
            lambda: {each.peer_id for each in members} <= guest.alive_peers(), within_s=15, what="membership"
        )
        assert invite not in guest.log.read_text()
    finally:
        guest.kill()
    wait_until(lambda: guest.peer_id not in member.alive_peers(), within_s=15, what="it is gone")


@pytest.mark.parametrize("with_key", [False, True])
def test_a_stranger_reads_nothing_and_writes_nothing(
    members: list[PeerProcess], tmp_path: Path, with_key: bool
) -> None:
    """Goal: told within 5 s on its own side, in one line; it serves alone and keeps trying."""
    member = members[0]
    before = member.json("status")
    options = simulated(tmp_path, *(key_file(tmp_path / "other.key") if with_key else ()))
    started = time.monotonic()
    stranger = PeerProcess(tmp_path / "stranger", join=member.addr, args=options)
    try:
        up_after_s = time.monotonic() - started
        wait_until(
            lambda: NO_MEMBER in stranger.log.read_text(),
            within_s=TOLD_WITHIN_S + up_after_s,
            what="the line that says why",
        )
        wait_until(
            lambda: member.json("status")["dropped"]["handshake"] >= before["dropped"]["handshake"] + 3,
            within_s=30,
            what="it tries on",
        )
        told = [line for line in stranger.log.read_text().splitlines() if NO_MEMBER in line]
        assert len([line for line in told if "state=unreachable" in line]) == 1
        assert stranger.json("peers") == {"peers": [], "foreign": []}
        assert "Traceback" not in stranger.log.read_text()
        _unharmed(members, before)
        assert stranger.peer_id not in member.peers()
        assert stranger.peer_id not in member.log.read_text()
    finally:
        stranger.kill()


def test_garbage_on_every_port_is_counted_and_changes_nothing_else(members: list[PeerProcess]) -> None:
    before = members[0].json("status")
    scan(members[0])
    _unharmed(members, before)


def _unharmed(nodes: list[PeerProcess], before: dict[str, object]) -> None:
    node, peer = nodes
    after = node.json("status")
    for field in ("incarnation", "engine_state", "requests", "cache"):
        assert after[field] == before[field]
    for kind in ("gossip", "snapshot", "request"):
        assert after["dropped"][kind] == before["dropped"][kind]  # type: ignore[index]
    wait_until(lambda: peer.peer_id in node.alive_peers(), within_s=5, what="the member is alive")
    assert "Traceback" not in node.log.read_text()
