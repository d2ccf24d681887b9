"""The peers a node knew when it stopped, so that it finds its swarm again without the one it joined by.

A small SQLite database in the data directory: each address of a peer with when the peer was last linked, and
when that address was last dialled with success; the best come first. It is a convenience: one that makes no
sense is moved aside, one that cannot be read or written is reported once and done without. It is opened for
each use, which is twice a minute, so that any thread may.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from peerinfer.core.types import PeerId
from peerinfer.node.ports import Link
from peerinfer.overlay.addresses import ADDRESSES_PER_PEER_MAX

log = logging.getLogger("peerinfer.overlay")

T = TypeVar("T")
Row = tuple[PeerId, str, float, float]

KNOWN_PEERS_FILE = "known_peers.sqlite"
JSON_FILE = "known_peers.json"
"""What earlier versions wrote; read once."""
KNOWN_PEERS_MAX = 512  # guess: half of whom the dialler takes at once
FORGOTTEN_AFTER_S = 30 * 86_400.0  # guess
SCHEMA_VERSION = 1
SCHEMA = f"""
BEGIN;
CREATE TABLE addresses (
    peer TEXT NOT NULL,
    addr TEXT NOT NULL,
    seen_at REAL NOT NULL,     -- the peer was linked, in Unix time
    reached_at REAL NOT NULL,  -- this address was dialled with success; 0: never
    PRIMARY KEY (peer, addr)
) WITHOUT ROWID;
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
UPSERT = """
INSERT INTO addresses VALUES (?, ?, ?, ?) ON CONFLICT (peer, addr) DO UPDATE SET
    seen_at = max(seen_at, excluded.seen_at), reached_at = max(reached_at, excluded.reached_at)
"""
READ = "SELECT peer, addr, seen_at, reached_at FROM addresses ORDER BY reached_at DESC, seen_at DESC, addr"
FORGET = """
DELETE FROM addresses WHERE seen_at < :since OR peer NOT IN (
    SELECT peer FROM addresses GROUP BY peer ORDER BY max(seen_at) DESC, peer LIMIT :peers
) OR (peer, addr) IN (
    SELECT peer, addr FROM (
        SELECT peer, addr, row_number() OVER (
            PARTITION BY peer ORDER BY reached_at DESC, seen_at DESC, addr
        ) AS place FROM addresses
    ) WHERE place > :addresses
)
"""


class KnownPeers:
    """What one data directory remembers. The caller says what time it is, in Unix time."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / KNOWN_PEERS_FILE
        self._json = data_dir / JSON_FILE
        self._reached: dict[tuple[PeerId, str], float] = {}
        self._told = ""

    def load(self, *, now_s: float) -> dict[PeerId, tuple[str, ...]]:
        """Peers, the last seen first, and their addresses, the best first."""
        rows = self._use(lambda database: self._read(database, now_s)) or []
        seen = {peer: 0.0 for peer, *_ in rows}
        for peer, _, seen_at, _ in rows:
            seen[peer] = max(seen[peer], seen_at)
        known: dict[PeerId, tuple[str, ...]] = dict.fromkeys(sorted(seen, key=lambda p: (-seen[p], p)), ())
        for peer, addr, *_ in rows:
            known[peer] += (addr,)
        return known

    def reached(self, peer: PeerId, addr: str, *, now_s: float) -> None:
        """A peer was dialled at this address; kept with the next `save`."""
        self._reached[peer, addr] = now_s

    def save(self, links: Mapping[PeerId, Link], *, now_s: float) -> None:
        """Remember the peers that are linked now."""
        reached, self._reached = self._reached, {}
        rows: list[Row] = [(peer, addr, now_s, 0.0) for peer, link in links.items() for addr in link.addrs]
        rows += [(peer, addr, at, at) for (peer, addr), at in reached.items()]
        if rows:
            self._use(lambda database: _write(database, rows, now_s))

    def _read(self, database: sqlite3.Connection, now_s: float) -> list[Row]:
        if (earlier := _from_json(self._json)) is not None:
            _write(database, earlier, now_s)
            database.commit()
            self._json.unlink()
        since_s = now_s - FORGOTTEN_AFTER_S
        return [row for row in database.execute(READ) if _makes_sense(row) and row[2] >= since_s]

    def _use(self, act: Callable[[sqlite3.Connection], T]) -> T | None:
        """What comes of it; None if the database cannot be used."""
        for _ in range(2):
            try:
                with _opened(self._path) as database:
                    return act(database)
            except (OSError, sqlite3.Error) as error:
                if not _is_damage(error):
                    self._tell(f"{self._path} cannot be used: {error}")
                    return None
                aside = self._path.with_suffix(".damaged")
                self._tell(f"{self._path} makes no sense ({error}): moved to {aside.name}")
                with suppress(OSError):
                    self._path.replace(aside)
        return None

    def _tell(self, what: str) -> None:
        if what != self._told:
            log.warning("%s", what)
            self._told = what


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The database in one transaction, which is kept if nothing is raised; made if there is none."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)  # peers' addresses are nobody else's
    os.close(descriptor)
    database = sqlite3.connect(path, timeout=1.0)
    try:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            database.executescript(SCHEMA)
        elif version != SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"version {version}, not {SCHEMA_VERSION}")
        with database:
            yield database
    finally:
        database.close()


def _write(database: sqlite3.Connection, rows: list[Row], now_s: float) -> None:
    database.executemany(UPSERT, rows)
    since_s = now_s - FORGOTTEN_AFTER_S
    limits = {"since": since_s, "peers": KNOWN_PEERS_MAX, "addresses": ADDRESSES_PER_PEER_MAX}
    database.execute(FORGET, limits)


def _is_damage(error: Exception) -> bool:
    """Whether the file is at fault, and not its disk, its rights or another process."""
    if isinstance(error, sqlite3.OperationalError):
        return str(error).startswith(("no such", "table addresses"))
    return isinstance(error, sqlite3.DatabaseError)


def _makes_sense(row: tuple[object, ...]) -> bool:
    """SQLite lets any column hold anything."""
    return list(map(type, row)) == [str, str, float, float]


def _from_json(path: Path) -> list[Row] | None:
    """The rows of an earlier version's file, as far as it makes sense; None if there is none."""
    try:
        written_at = path.stat().st_mtime
        content = json.loads(path.read_bytes())
    except OSError:
        return None
    except (ValueError, RecursionError):
        return []
    if not isinstance(content, dict):
        return []
    return [
        (PeerId(peer), addr, written_at, 0.0)
        for peer, addrs in content.items()
        if isinstance(addrs, list) and peer.isascii()  # JSON spells what is no text
        for addr in addrs
        if isinstance(addr, str) and addr.isascii()
    ]
