"""What happens at a running node, a line each on stderr: state changes, not traffic.

The lines are the log of the node and its parts, from INFO on. Peer ids are cut to their ends, as
`peerinfer peers` shows them; libraries say nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

LONG_PEER_ID = re.compile(r"\b(?:12D3KooW|Qm)[1-9A-HJ-NP-Za-km-z]{30,}\b")
SHOWN = 6


class EventFormatter(logging.Formatter):
    """Time, level where it is not INFO, and the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        line = shorten(super().formatMessage(record))
        return line if record.levelno == logging.INFO else f"{line} [{record.levelname.lower()}]"


def shorten(text: str) -> str:
    """The text with the ends of the peer ids in it."""
    return LONG_PEER_ID.sub(lambda match: f"…{match[0][-SHOWN:]}", text)


@contextmanager
def events_on_stderr() -> Iterator[None]:
    """Show the events of this process inside the block."""
    stream = logging.StreamHandler()
    stream.setFormatter(EventFormatter())
    logger = logging.getLogger("peerinfer")
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.addHandler(stream)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(stream)
        logger.setLevel(before[0])
        logger.propagate = before[1]
