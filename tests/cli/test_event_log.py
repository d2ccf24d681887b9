"""Events on stderr."""

from __future__ import annotations

import logging

from peerinfer.cli.event_log import EventFormatter

PEER = "12D3KooWSj6jQEeeZAgdKb12WPQjvGMM5mWZWLPPUeM6dBuPkjCA"


def line(level: int, message: str) -> str:
    record = logging.LogRecord("peerinfer.node", level, "", 0, message, (), None)
    return EventFormatter().format(record).partition(" ")[2]


def test_peer_ids_are_cut_to_their_ends_and_only_trouble_has_a_level() -> None:
    assert line(logging.INFO, f"peer={PEER} state=suspect") == "peer=…uPkjCA state=suspect"
    assert line(logging.WARNING, "full") == "full [warning]"
