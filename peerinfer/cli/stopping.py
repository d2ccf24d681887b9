"""How a command that runs for long is stopped: a signal, or the end of its stdin.

SIGTERM is how service managers and containers stop a process: what is in progress may come to its end first.
Ctrl-C, a hang-up and the end of stdin come from somebody who waits: they stop at once. Stopping itself is
orderly (peers are told, the engine is let go) but never takes long: whatever has not ended by `STOP_S` is
left to the operating system.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from peerinfer.cli.errors import CommandError, end_interrupted_line

STOP_S = 2.5
"""From the first signal, or the end of draining, to the end of the process, at most."""


@dataclass(slots=True)
class Stopping:
    """What a command does when it is told to stop."""

    block: trio.CancelScope = field(default_factory=trio.CancelScope)
    drain: Callable[[], Awaitable[None]] | None = None
    """On SIGTERM this comes first."""
    asked: bool = False
    _told: trio.Event | None = None

    async def until_told(self) -> None:
        """Return when it is time to stop: what the block holds is then left in order, and says its goodbyes.

        Before this is called the block is cancelled in place of it.
        """
        self._told = trio.Event()
        await self._told.wait()

    def stop(self) -> None:
        """End the block, and the process in `STOP_S` whatever the block does then."""
        timer = threading.Timer(STOP_S, os._exit, args=(0,))
        timer.daemon = True
        timer.start()
        if self._told is None:
            self.block.cancel()
        else:
            self._told.set()


def signals_that_stop() -> list[signal.Signals]:
    """SIGHUP only where `nohup` did not have it ignored."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_up]


@asynccontextmanager
async def until_stopped(*, stdin: bool) -> AsyncIterator[Stopping]:
    """Run the block until a signal comes, or, with `stdin`, until that ends; then leave it."""
    stopping = Stopping()
    async with trio.open_nursery() as nursery:
        with stopping.block:
            nursery.start_soon(_stop_on_signal, stopping, nursery)
            if stdin:
                nursery.start_soon(_stop_on_stdin_end, stopping)
            yield stopping
        nursery.cancel_scope.cancel()


async def _stop_on_signal(stopping: Stopping, nursery: trio.Nursery) -> None:
    with trio.open_signal_receiver(*signals_that_stop()) as signals:
        async for received in signals:
            if stopping.asked:
                os._exit(0)  # who asks twice is in a hurry
            stopping.asked = True
            end_interrupted_line()
            if received == signal.SIGTERM and stopping.drain is not None:
                nursery.start_soon(_drain, stopping, stopping.drain)
            else:
                stopping.stop()


async def _drain(stopping: Stopping, drain: Callable[[], Awaitable[None]]) -> None:
    await drain()
    stopping.stop()


async def _stop_on_stdin_end(stopping: Stopping) -> None:
    try:
        while True:
            await trio.lowlevel.wait_readable(0)
            if not os.read(0, 4096):
                break
    except OSError:
        raise CommandError(
            "--until-stdin-closes wants a pipe as stdin, kept open by who started it"
        ) from None
    stopping.stop()
