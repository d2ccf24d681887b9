"""Command lines as real processes, with their output in files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 60.0
"""Generous: a machine under load takes many times the usual second."""


class Running:
    """A command line that runs."""

    def __init__(self, directory: Path, *arguments: str, stdin: int = subprocess.DEVNULL) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._out, self._err = directory / "out", directory / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "peerinfer", *arguments], stdin=stdin, stdout=out, stderr=err
            )

    @property
    def stdout(self) -> str:
        """What it has printed."""
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        """What it has said."""
        return self._err.read_text()

    def wait_for(self, text: str, *, in_stderr: bool = False) -> str:
        """All of stdout, or of stderr, once `text` is in it."""

        def found() -> bool:
            there = text in (self.stderr if in_stderr else self.stdout)
            assert there or self.process.poll() is None, f"it ended early: {self.stderr}"
            return there

        wait_until(found, what=text)
        return self.stderr if in_stderr else self.stdout

    def stop(self, number: signal.Signals) -> tuple[int, float]:
        """Send a signal; the status and the seconds until the end."""
        started = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(START_S), time.monotonic() - started


@contextmanager
def running(directory: Path, *arguments: str, stdin: int = subprocess.DEVNULL) -> Iterator[Running]:
    """A command line that runs while the block does."""
    command = Running(directory, *arguments, stdin=stdin)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.wait()


def wait_until(condition: Callable[[], bool], *, what: str) -> None:
    """Poll a real process, on which there is nothing to wait, until the condition holds."""
    deadline = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {START_S} s: {what}"
        time.sleep(0.05)
