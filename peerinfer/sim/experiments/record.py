"""What a cell's requests came to, row by row: all that tables and figures are made of.

Times are kept in whole microseconds and rows in the order of the requests, so that the same history has
the same digest everywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Row(NamedTuple):
    """One request."""

    topic: int
    entry: int
    served_by: int
    """The node's index; -1 if nobody answered."""
    prompt_tokens: int
    expected_cached_tokens: int
    """The entry node's prediction when it decided."""
    cached_tokens: int
    """What the serving engine reported."""
    latency_us: int
    ttft_us: int
    engine_us: int
    trees_us: int
    processing_us: int
    network_us: int


@dataclass(frozen=True, slots=True)
class Record:
    """A cell's result."""

    topics: tuple[str, ...]
    nodes: int
    rows: tuple[Row, ...]
    seconds: float
    """How long the measurement took; no part of the digest."""

    @property
    def answered(self) -> list[Row]:
        """The requests that were answered."""
        return [row for row in self.rows if row.served_by >= 0]

    @property
    def digest(self) -> str:
        """The same for the same history."""
        data = json.dumps([self.topics, self.nodes, self.rows]).encode()
        return hashlib.blake2b(data, digest_size=10).hexdigest()

    def as_json(self) -> dict[str, object]:
        """Column by column, which is compact and can be read by anything."""
        columns = dict(zip(Row._fields, map(list, zip(*self.rows, strict=True)), strict=False))
        return {
            "topics": self.topics,
            "nodes": self.nodes,
            "seconds": round(self.seconds, 1),
            "digest": self.digest,
            "columns": columns,
        }


def record_from_json(data: dict[str, object]) -> Record:
    """What `as_json` gave. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
    match data:
        case {
            "topics": list(topics),
            "nodes": int(nodes),
            "seconds": int() | float() as seconds,
            "columns": dict(columns),
            "digest": digest,
        }:
            record = Record(tuple(topics), nodes, tuple(_rows(columns)), float(seconds))
            if record.digest == digest:
                return record
    raise ValueError("this is no record, or a damaged one")


def _rows(columns: dict[str, Sequence[int]]) -> Iterator[Row]:
    wanted: Iterable[Sequence[int]] = [columns[name] for name in Row._fields] if columns else []
    return map(Row._make, zip(*wanted, strict=True))
