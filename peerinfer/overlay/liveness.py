"""Whether the other end of a connection still runs: yamux pings, 28 bytes each way, when it is silent.

A peer that was killed is told by its kernel; one that is frozen, or whose network is gone, is told by
nobody. The library's own health check opens a fresh stream for every probe (measured: 4.5 ms of CPU on
either side, more than everything else that an idle node does); a ping of the multiplexer costs 0.1 ms,
and a connection that carries anything needs none. Time that this process itself slept through is not
the peer's silence.
"""

from __future__ import annotations

import struct
from typing import Any

import trio
from libp2p.stream_muxer.yamux.yamux import FLAG_SYN, TYPE_PING, YAMUX_HEADER_FORMAT

from peerinfer.overlay.intake import intake_of
from peerinfer.overlay.stream_errors import STREAM_ERRORS

SLICE_S = 0.25
"""However late our own loop is, a slice of waiting counts as two at most."""


class Liveness:
    """The watch over one connection."""

    def __init__(self, connection: Any, *, interval_s: float, timeout_s: float) -> None:
        self._muxed = connection.muxed_conn
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._intake = intake_of(self._muxed)

    async def wait_silent(self) -> bool:
        """Return True when a ping is not answered in time, False when the connection is closing."""
        closing = self._muxed.event_shutting_down
        while not closing.is_set():
            with trio.move_on_at(self._intake.heard_at + self._interval_s):
                await closing.wait()
            silent_s = trio.current_time() - self._intake.heard_at
            if silent_s >= self._interval_s and not await self._answers_ping():
                return not closing.is_set()
        return False

    async def _answers_ping(self) -> bool:
        """Whether anything at all comes in within the timeout after a ping."""
        asked_at = trio.current_time()
        self._muxed._ping_id = (self._muxed._ping_id + 1) % 2**32
        ping = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_PING, FLAG_SYN, 0, self._muxed._ping_id)
        try:
            await self._muxed._write_frame(ping)
        except STREAM_ERRORS:
            return False
        self._muxed._ping_sent_time = trio.current_time()  # the library takes its round trip from this
        waited_s = 0.0
        while waited_s < self._timeout_s and self._intake.heard_at <= asked_at:
            began = trio.current_time()
            await trio.sleep(SLICE_S)
            waited_s += min(trio.current_time() - began, 2 * SLICE_S)
        return self._intake.heard_at > asked_at
