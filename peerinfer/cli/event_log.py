"""What happens at a running node, a line each on stderr: state changes, not traffic.

The lines are the log of the node and its parts, from INFO on. Peer ids are cut to their ends, as
`peerinfer peers` shows them; libraries say nothing.
"""

from __future__ import annotations

import logging
import re

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


def log_to_stderr() -> None:
    """Show the events of this process from now on."""
    stream = logging.StreamHandler()
    stream.setFormatter(EventFormatter())
    logger = logging.getLogger("peerinfer")
    logger.setLevel(logging.INFO)
    logger.addHandler(stream)
    logger.propagate = False
