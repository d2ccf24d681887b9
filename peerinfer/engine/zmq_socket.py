"""A ZeroMQ socket on trio, without a thread of ours.

ZeroMQ tells through a descriptor that something happened, not that a message is there, and once only. Hence
the order here: try first, and wait only after a try that found nothing, since such a try has taken note of
all that had happened (zmq_getsockopt(3), ZMQ_FD). Each socket belongs to one task.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio
import zmq


class ZmqSocket:
    """Sends and receives whole messages of several frames."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._descriptor = int(socket.getsockopt(zmq.FD))

    async def receive(self) -> list[bytes]:
        """The next message. Safe to cancel: no message is lost."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                await trio.lowlevel.wait_readable(self._descriptor)
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()  # a flood must not starve other tasks
                return frames

    def receive_nowait(self) -> list[bytes] | None:
        """A message that is there; None if there is none. Another task's `receive` may be under way."""
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send a message, waiting while the queue is full. Safe to cancel: it is sent whole or not at all."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                await trio.lowlevel.wait_readable(self._descriptor)  # also the news that there is room
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return

    def close(self) -> None:
        """Close it, dropping what was not sent."""
        self._socket.close(linger=0)
