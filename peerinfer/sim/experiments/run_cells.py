"""Measures cells that have no result yet, in processes of their own, and keeps each result at once.

A worker writes its result itself, so nothing that was measured is lost however the run ends. An interrupted
run sets a flag that every worker looks at while it measures.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from ctypes import c_long
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.effort import effort
from peerinfer.sim.experiments.prompts import Prompts, open_prompts
from peerinfer.sim.experiments.simulate import simulate
from peerinfer.sim.experiments.store import Store
from peerinfer.sim.orphans import end_with_parent

TICK_REQUESTS = 20
"""Progress is told, and the flag looked at, every so many requests: a shared counter costs a lock."""
_LOOK_INTERVAL_S = 0.2

Progress = Callable[[int], None]
"""Hears how much is done in all: the effort of each request that is over."""


class StoppedError(Exception):
    """The run was interrupted."""


class _Worker:
    """What a process of the pool keeps between cells."""

    def __init__(self, prompts: Prompts, store: Store, counter: Synchronized[int], stop: Event) -> None:
        self._prompts, self._store, self._counter, self._stop = prompts, store, counter, stop
        self._uncounted = self._effort = 0

    def measure(self, cell: Cell) -> None:
        self._effort = effort(cell)
        record = simulate(cell, self._prompts.workload(cell.workload), tick=self._tick)
        self._count()
        self._store.put(cell, record)

    def _tick(self) -> None:
        self._uncounted += 1
        if self._uncounted == TICK_REQUESTS:
            self._count()
            if self._stop.is_set():
                raise StoppedError

    def _count(self) -> None:
        with self._counter.get_lock():
            self._counter.value += self._uncounted * self._effort
        self._uncounted = 0


_worker: _Worker


def _start(data: Path | None, directory: Path, counter: Synchronized[int], stop: Event) -> None:
    global _worker
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent acts on it
    prompts = open_prompts(data, say=lambda _: None)
    _worker = _Worker(prompts, Store(directory, corpus=prompts.corpus.digest), counter, stop)


def _measure(cell: Cell) -> None:
    _worker.measure(cell)


def run_cells(
    cells: Sequence[Cell], *, data: Path | None, directory: Path, jobs: int | None, progress: Progress
) -> None:
    """Measure these cells, one per core unless `jobs` says else; the store in `directory` has them then."""
    context = multiprocessing.get_context("spawn")
    counter: Synchronized[int] = context.Value(c_long, 0)
    stop = context.Event()
    with ProcessPoolExecutor(
        min(jobs or _cores(), len(cells)),
        mp_context=context,
        initializer=_start,
        initargs=(data, directory, counter, stop),
    ) as pool:
        try:
            waiting = {pool.submit(_measure, cell) for cell in cells}
            while waiting:
                done, waiting = wait(waiting, timeout=_LOOK_INTERVAL_S, return_when=FIRST_EXCEPTION)
                for each in done:
                    each.result()
                progress(counter.value)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _cores() -> int:
    """What this process may use; macOS does not tell, and all of it may be used."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
