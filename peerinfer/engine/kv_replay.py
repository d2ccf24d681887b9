"""Asking a publisher of cache events for those that it still keeps.

The request is a sequence number; the answer is every kept message from there on, then one numbered -1.
SGLang repeats the topic in each reply, vLLM does not.
"""

from __future__ import annotations

import struct

import trio
import zmq

from peerinfer.engine.kv_event_codec import EventDecodeError
from peerinfer.engine.zmq_socket import ZmqSocket

_SEQ = struct.Struct(">Q")
_END = b"\xff" * 8


class ReplayFailedError(Exception):
    """The publisher did not answer."""


class Replay:
    """One publisher's replay endpoint."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, *, timeout_s: float) -> None:
        self._context = context
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._socket: ZmqSocket | None = None

    async def ask(self, begin: int) -> None:
        """Ask for all messages from `begin` on. Every answer must be received, up to the end."""
        if self._socket is None:
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.RCVHWM, 0)  # a ROUTER drops what does not fit; the buffers are bounded
            socket.connect(self._endpoint)
            self._socket = ZmqSocket(socket)
        await self._socket.send([b"", _SEQ.pack(begin)])

    async def receive(self) -> tuple[int, bytes] | None:
        """The next kept message's number and payload; None after the last. Raises `ReplayFailedError`."""
        assert self._socket is not None, "nothing was asked"
        frames: list[bytes] = []
        with trio.move_on_after(self._timeout_s):
            frames = await self._socket.receive()
        if not frames:
            self.close()
            raise ReplayFailedError(f"no replay from {self._endpoint} within {self._timeout_s:g} s")
        if len(frames) < 3:
            self.close()
            raise ReplayFailedError(f"{self._endpoint} replays nothing that is known")
        return None if frames[-2] == _END else (read_seq(frames[-2]), frames[-1])

    def close(self) -> None:
        """Drop the connection, and answers that are still under way; the next question makes a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def read_seq(frame: bytes) -> int:
    """A message's number. Raises `EventDecodeError`."""
    if len(frame) != _SEQ.size:
        raise EventDecodeError(f"a sequence number of {len(frame)} bytes")
    number: int = _SEQ.unpack(frame)[0]
    return number
