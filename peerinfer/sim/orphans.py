"""Worker processes that end when whoever started them is gone, however that ended.

A pool's workers wait for work on a pipe whose other end they hold, too: when the parent is killed they would
wait for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """To be called once in a worker process."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a worker process has a parent"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
