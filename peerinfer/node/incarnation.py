"""Which life of a node this is: rises with every start and with every loss of the engine's cache.

max(last stored + 1, wall clock in ms), stored before it is used: a clock that jumped back cannot make a
restarted node look older than its former life, and a lost file is made up for by the clock.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

STORED_MAX = 2**44
"""In ms, the year 2527."""


def stored_incarnations(path: Path) -> Callable[[int], int]:
    """A function that gives the next incarnation above its argument, kept in the file `path`."""

    def next_incarnation(above: int) -> int:
        stored = 0
        with contextlib.suppress(OSError, ValueError):
            stored = int(path.read_text())
        if not 0 <= stored <= STORED_MAX:
            stored = 0  # no clock has made it, and it would not fit the wire
        incarnation = max(stored + 1, above + 1, int(time.time() * 1000))
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(str(incarnation))
        os.replace(fresh, path)
        return incarnation

    return next_incarnation
