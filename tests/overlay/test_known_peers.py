"""The database of known peers helps when it can, and never harms."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from peerinfer.core.types import PeerId
from peerinfer.node.ports import Link
from peerinfer.overlay.addresses import ADDRESSES_PER_PEER_MAX
from peerinfer.overlay.known_peers import (
    FORGOTTEN_AFTER_S,
    JSON_FILE,
    KNOWN_PEERS_FILE,
    KNOWN_PEERS_MAX,
    KnownPeers,
)

NOW_S = 1_800_000_000.0
A, B, C = map(PeerId, "abc")


def at(port: int) -> str:
    return f"/ip4/10.0.0.1/tcp/{port}"


def links(count: int) -> dict[PeerId, Link]:
    return {PeerId(f"p{number:04}"): Link(addrs=(at(number + 1),)) for number in range(count)}


def load(directory: Path, *, now_s: float = NOW_S) -> dict[PeerId, tuple[str, ...]]:
    """What another run of the node finds."""
    return KnownPeers(directory).load(now_s=now_s)


def test_peers_with_addresses_are_remembered(tmp_path: Path) -> None:
    KnownPeers(tmp_path).save({**links(2), PeerId("nowhere"): Link(addrs=())}, now_s=NOW_S)
    assert load(tmp_path) == {peer: link.addrs for peer, link in links(2).items()}


def test_a_lonely_stop_forgets_nobody(tmp_path: Path) -> None:
    known = KnownPeers(tmp_path)
    known.save(links(2), now_s=NOW_S)
    known.save({}, now_s=NOW_S + 1)
    assert len(load(tmp_path)) == 2


def test_who_was_seen_last_and_where_it_was_reached_come_first(tmp_path: Path) -> None:
    """Goal: a node that comes back dials what is likeliest to work."""
    known = KnownPeers(tmp_path)
    known.save({A: Link(addrs=(at(1), at(2), at(3))), B: Link(addrs=(at(4),))}, now_s=NOW_S)
    known.reached(A, at(2), now_s=NOW_S + 1)
    known.reached(B, at(5), now_s=NOW_S + 2)
    known.save({C: Link(addrs=(at(6),))}, now_s=NOW_S + 3)
    known.reached(A, at(3), now_s=NOW_S + 4)
    known.save({}, now_s=NOW_S + 5)
    known.save({A: Link(addrs=(at(1),))}, now_s=NOW_S + 6)
    assert list(load(tmp_path).items()) == [(A, (at(3), at(2), at(1))), (C, (at(6),)), (B, (at(5), at(4)))]


def test_it_is_bounded_in_peers_and_in_addresses(tmp_path: Path) -> None:
    """The peers seen last stay, and of an address of theirs that was reached it is the newest."""
    known = KnownPeers(tmp_path)
    known.save({A: Link(addrs=(at(1),))}, now_s=NOW_S)
    known.save(links(KNOWN_PEERS_MAX), now_s=NOW_S + 1)
    assert A not in load(tmp_path)
    assert len(load(tmp_path)) == KNOWN_PEERS_MAX
    for port in range(100, 200):
        known.reached(B, at(port), now_s=NOW_S + port)
        known.save({}, now_s=NOW_S + port)
    newest = tuple(at(port) for port in range(199, 199 - ADDRESSES_PER_PEER_MAX, -1))
    assert load(tmp_path)[B] == newest
    assert _count(tmp_path) == KNOWN_PEERS_MAX - 1 + ADDRESSES_PER_PEER_MAX


def test_who_was_not_seen_for_a_month_is_forgotten(tmp_path: Path) -> None:
    known = KnownPeers(tmp_path)
    known.save({A: Link(addrs=(at(1),))}, now_s=NOW_S)
    later_s = NOW_S + FORGOTTEN_AFTER_S + 1
    assert not load(tmp_path, now_s=later_s)
    known.save({B: Link(addrs=(at(2),))}, now_s=later_s)
    assert _count(tmp_path) == 1


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    KnownPeers(tmp_path).save(links(1), now_s=NOW_S)
    path = tmp_path / KNOWN_PEERS_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    load(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["garbage", "newer", "other tables", "cut"])
def test_a_database_that_makes_no_sense_is_moved_aside(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Told in one line, once; what comes after it is remembered."""
    path = tmp_path / KNOWN_PEERS_FILE
    KnownPeers(tmp_path).save(links(200), now_s=NOW_S)
    if damage == "garbage":
        path.write_bytes(b"no database at all" * 500)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-5000])
    else:
        database = sqlite3.connect(path)
        database.execute("PRAGMA user_version = 2" if damage == "newer" else "DROP TABLE addresses")
        database.commit()
        database.close()
    known = KnownPeers(tmp_path)
    assert known.load(now_s=NOW_S) == {}
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [f"{path} makes no sense"]
    assert path.with_suffix(".damaged").exists()
    known.save(links(3), now_s=NOW_S)
    assert len(load(tmp_path)) == 3


def test_values_of_other_types_are_passed_over(tmp_path: Path) -> None:
    KnownPeers(tmp_path).save(links(1), now_s=NOW_S)
    database = sqlite3.connect(tmp_path / KNOWN_PEERS_FILE)
    database.execute("INSERT INTO addresses VALUES (x'00', 'a', 1, 1), ('p', 'a', 'now', 1)")
    database.commit()
    database.close()
    assert list(load(tmp_path)) == list(links(1))


def test_an_earlier_versions_file_is_taken_over_once(tmp_path: Path) -> None:
    earlier = tmp_path / JSON_FILE
    earlier.write_text(json.dumps({"a": [at(1), 7], "b": "none", "c": [at(2)]}))
    os.utime(earlier, (NOW_S - 10, NOW_S - 10))
    assert load(tmp_path) == {A: (at(1),), C: (at(2),)}
    assert not earlier.exists()
    assert load(tmp_path) == {A: (at(1),), C: (at(2),)}


SURROGATES = ['{"p": ["\\ud800"]}', '{"\\ud800": ["/ip4/192.0.2.1/tcp/1"]}']


@pytest.mark.parametrize("content", ["", "[]", "{", '{"p": 1}', '{"p": [1, {}]}', "\x00", *SURROGATES])
def test_an_earlier_versions_file_that_makes_no_sense_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / JSON_FILE).write_text(content)
    assert not load(tmp_path)
    assert not (tmp_path / JSON_FILE).exists()


def test_a_directory_that_is_gone_is_told_once_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = KnownPeers(tmp_path / "gone")
    for _ in range(3):
        known.save(links(1), now_s=NOW_S)
    assert not known.load(now_s=NOW_S)
    assert len(caplog.records) == 1
    assert "cannot be used" in caplog.text


def _count(directory: Path) -> int:
    database = sqlite3.connect(directory / KNOWN_PEERS_FILE)
    (count,) = database.execute("SELECT count(*) FROM addresses").fetchone()
    database.close()
    return int(count)
