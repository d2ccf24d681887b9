"""One stream of the library's, past its locks where nothing waits.

What comes in goes to a function at once (intake.py), a message that fits goes out with all that the
connection sends in this turn (outbox.py). Everything else is the library's: messages that are longer than a
frame or than the window, and the end.
"""

from __future__ import annotations

import struct
from typing import Any

import trio
from libp2p.network.stream.exceptions import StreamEOF, StreamReset
from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, MAX_MESSAGE_SIZE, TYPE_DATA, YAMUX_HEADER_FORMAT

from peerinfer.overlay.intake import Feed, intake_of
from peerinfer.overlay.outbox import outbox_of

RESET_S = 2.0  # guess
"""To tell the other side that a stream is over; after that only the connection's end will tell it."""


class QuickStream:
    """A stream that one reader and one writer have to themselves."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._muxed = stream.muxed_stream

    async def receive(self, feed: Feed) -> None:
        """Hand over what comes in, at once, until the end. Raises one of `STREAM_ERRORS`."""
        stream, connection = self._muxed, self._muxed.conn
        intake = intake_of(connection)
        intake.attach(stream, feed)
        while (news := connection.stream_events.get(stream.stream_id)) is not None:
            intake.hand_over_kept(stream)
            if stream.recv_closed or stream.closed:
                break
            await news.wait()
            if stream.stream_id in connection.stream_events:
                connection.stream_events[stream.stream_id] = trio.Event()
        raise StreamReset if stream.reset_received else StreamEOF

    def put(self, message: bytes) -> bool:
        """Send a message soon, without waiting; False if it has to wait. Nothing else may be on its way."""
        outbox = outbox_of(self._muxed.conn)
        if outbox.is_full:
            return False
        frame = one_frame(self._muxed, message)
        if frame is None:
            return False
        outbox.put(frame)
        return True

    async def write(self, message: bytes) -> None:
        """See the library."""
        await self._stream.write(message)

    async def reset(self) -> None:
        """End it, and take it off its connection's books.

        The library keeps a stream with unread bytes for a minute, and leaves an event behind for ever if
        somebody waited for data when the other side's reset came in.
        """
        connection, stream_id = self._muxed.conn, self._muxed.stream_id
        intake_of(connection).detach(self._muxed)
        await self._stream.reset()
        async with connection.streams_lock:
            for book in (connection.streams, connection.stream_buffers, connection.stream_events):
                book.pop(stream_id, None)


def one_frame(stream: Any, data: bytes) -> bytes | None:
    """The message as a frame, its bytes taken off the window; None where it has to wait or is too long.

    The library does the same under two locks, each of which is a turn of the loop: they order what is
    done between their waits, and here nothing waits.
    """
    size = len(data)
    if not 0 < size <= min(stream.send_window, MAX_MESSAGE_SIZE - HEADER_SIZE):
        return None
    if stream.send_closed or stream.closed or stream.window_lock.locked():
        return None
    stream.send_window -= size
    return struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, stream.stream_id, size) + data
