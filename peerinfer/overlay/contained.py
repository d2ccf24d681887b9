"""What goes wrong with one peer, or with one message, costs that and nothing else.

The overlay's tasks live as long as the node. What peers send is checked where it comes in; what slips
through all the same, in the library or in whoever is told, must not end a task that serves everybody.
So each loop has one boundary, around one turn: a line in the log, a count where a peer's bytes caused
it, and on. Cancellation passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from peerinfer.core.types import PeerId

log = logging.getLogger("peerinfer.overlay")


@contextmanager
def contained(
    doing: str, *, peer: PeerId | None = None, refuse: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Go on behind this block whatever it raises.

    Args:
        doing: for the log: "… failed".
        refuse: is told the error's name; to count what a peer's bytes caused.
    """
    try:
        yield
    except Exception as error:
        log.warning("peer=%s %s failed, goes on: %r", peer, doing, error)
        log.debug("peer=%s %s failed", peer, doing, exc_info=error)
        if refuse is not None:
            refuse(type(error).__name__)
