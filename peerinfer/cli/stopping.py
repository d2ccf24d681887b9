"""How a command that runs for long is stopped: a signal, or the end of its stdin.

Stopping is orderly (peers are told, the engine is let go) but never takes long: whatever has not ended by
`STOP_S` is left to the operating system.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from peerinfer.cli.errors import CommandError, end_interrupted_line

STOP_S = 2.5
"""From the first signal to the end of the process, at most."""


def signals_that_stop() -> list[signal.Signals]:
    """SIGHUP only where `nohup` did not have it ignored."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_up]


@asynccontextmanager
async def until_stopped(*, stdin: bool) -> AsyncIterator[None]:
    """Run the block until a signal comes, or, with `stdin`, until that ends; then cancel and leave it."""
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as block:
            nursery.start_soon(_stop_on_signal, block)
            if stdin:
                nursery.start_soon(_stop_on_stdin_end, block)
            yield
        nursery.cancel_scope.cancel()


async def _stop_on_signal(block: trio.CancelScope) -> None:
    with trio.open_signal_receiver(*signals_that_stop()) as signals:
        async for _ in signals:
            if block.cancel_called:
                os._exit(0)  # who asks twice is in a hurry
            end_interrupted_line()
            _stop(block)


async def _stop_on_stdin_end(block: trio.CancelScope) -> None:
    try:
        while True:
            await trio.lowlevel.wait_readable(0)
            if not os.read(0, 4096):
                break
    except OSError:
        raise CommandError(
            "--until-stdin-closes wants a pipe as stdin, kept open by who started it"
        ) from None
    _stop(block)


def _stop(block: trio.CancelScope) -> None:
    """Cancel the block, and end the process in `STOP_S` whatever it does then."""
    timer = threading.Timer(STOP_S, os._exit, args=(0,))
    timer.daemon = True
    timer.start()
    block.cancel()
