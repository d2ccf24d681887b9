"""What a face logs as a bug of ours is one for the fuzzing, too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Bugs(logging.Handler):
    def __init__(self, but: tuple[str, ...]) -> None:
        super().__init__(logging.ERROR)
        self._but = but
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if any(part in record.getMessage() for part in self._but):
            return
        error = record.exc_info[1] if record.exc_info else None
        self.found.append(error or AssertionError(record.getMessage()))


@contextmanager
def bugs_logged(*names: str, but: tuple[str, ...] = ()) -> Iterator[None]:
    """Raises the first error that these loggers were told of, and keeps it from the console.

    What has one of `but` in it is none.
    """
    bugs = _Bugs(but)
    logs = [logging.getLogger(name) for name in names]
    propagated = [log.propagate for log in logs]
    for log in logs:
        log.addHandler(bugs)
        log.propagate = False
    try:
        yield
    finally:
        for log, propagate in zip(logs, propagated, strict=True):
            log.removeHandler(bugs)
            log.propagate = propagate
    for bug in bugs.found:
        raise bug
