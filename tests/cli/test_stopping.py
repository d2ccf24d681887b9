"""Which signals stop a command."""

from __future__ import annotations

import signal

from peerinfer.cli.stopping import signals_that_stop


def test_a_hang_up_stops_a_command_unless_nohup_started_it() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert signals_that_stop() == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert signals_that_stop() == [signal.SIGINT, signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)
