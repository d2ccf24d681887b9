"""Virtual time: hours in seconds, and one seed gives one history, in every process.

trio draws the order in which tasks run, and no seed of ours reaches that. So this module, and no other,
reaches into trio: it makes the draw repeatable, and can hold back the tasks of a node that is frozen, as
SIGSTOP does: time goes on, and what was due happens late, on thawing. tests/sim/test_runtime.py notices when
a new trio breaks this.

No sockets and no threads in here: time jumps as soon as nothing is to do, whatever they are waiting for.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import trio
import trio.abc
from trio._core import _run
from trio.lowlevel import Task

T = TypeVar("T")

GC_THRESHOLDS = (50_000, 20, 1000)  # measured: half the time of 150 nodes
"""A world holds millions of long-lived objects, which Python's default would look through again and again."""
IDLE_ROUNDS_MAX = 100
"""So many rounds of trio's loop in which nothing can be waited for, and a world is stuck."""


class VirtualClock(trio.abc.Clock):
    """Starts at 0 and jumps to the next deadline as soon as nothing is to do before it.

    trio asks how long to sleep exactly then, so this needs no autojump, which costs a round of trio's loop
    and a look at the real clock for each jump. `wait_all_tasks_blocked` does not work under it.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._idle_rounds = 0

    def start_clock(self) -> None:
        """It never runs."""

    def current_time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump instead. Raises RuntimeError if nothing would ever happen again."""
        if deadline < math.inf:
            self._now = max(self._now, deadline)
            self._idle_rounds = 0
            return 0.0
        self._idle_rounds += 1  # one is no sign: trio wakes itself through a socket when a run ends
        if self._idle_rounds > IDLE_ROUNDS_MAX:
            raise RuntimeError("every task waits for another one: nothing will ever happen again")
        return 0.0


class _Queue(deque[Task]):
    """trio's run queue while somebody is frozen: their tasks wait aside."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[Task, list[Task]] = {}

    def append(self, task: Task) -> None:
        """Let a task run soon, unless it is of a frozen node."""
        root = self._root(task)
        if root is None:
            super().append(task)
        else:
            self.held[root].append(task)

    def _root(self, task: Task | None) -> Task | None:
        while task is not None:
            if task in self.held:
                return task
            nursery = task.parent_nursery
            task = None if nursery is None else nursery.parent_task
        return None


def freeze(root: Task) -> None:
    """Hold back this task and all below it from their next step on."""
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    before = runner.runq
    if not isinstance(before, _Queue):
        runner.runq = _Queue()
        runner.runq.held[root] = []
        for task in before:
            runner.runq.append(task)
    else:
        runnable = list(before)
        before.clear()
        before.held[root] = []
        for task in runnable:
            before.append(task)


def thaw(root: Task) -> None:
    """Let them go on; all that was due in the meantime happens now."""
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    queue = runner.runq
    if isinstance(queue, _Queue) and root in queue.held:
        for task in queue.held.pop(root):
            queue.append(task)
        if not queue.held:
            runner.runq = deque(queue)


def run_virtual(main: Callable[..., Awaitable[T]], *args: Any, seed: int) -> T:
    """Run `main(*args)` in virtual time; the seed is that of trio's scheduling."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with seeded_scheduling(seed):
            return trio.run(main, *args, clock=VirtualClock())
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def seeded_scheduling(seed: int) -> Iterator[None]:
    """Every `trio.run` inside orders its tasks by this seed, whoever calls it."""
    before, state = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _run._r.seed(seed)
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]
        _run._r.setstate(state)
