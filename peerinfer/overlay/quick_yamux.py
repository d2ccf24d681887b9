"""Every connection of the library's with an outbox and an intake, from its first frame on."""

from __future__ import annotations

from typing import Any

import trio
from libp2p.stream_muxer.yamux.yamux import Yamux

from peerinfer.overlay.intake import intake_of
from peerinfer.overlay.outbox import outbox_of

_handle_incoming = Yamux.handle_incoming


async def _handle_incoming_quickly(self: Any) -> None:
    intake_of(self)  # before the loop's first read: it must not come in between a frame's head and its body
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox_of(self).run)
        self._reading_task = trio.lowlevel.current_task()
        await _handle_incoming(self)
        self._reading_task = None
        nursery.cancel_scope.cancel()


async def _write_frame(self: Any, data: bytes) -> None:
    """Send a frame of the library's.

    Whoever reads does not wait until its answer to a ping, or to a new stream, is out: two nodes that have
    much to send would each wait for the other to read. How many answers a peer can ask for is bounded by
    frame_meter.py.
    """
    outbox = outbox_of(self)
    if self.__dict__.get("_reading_task") is trio.lowlevel.current_task():
        outbox.put(data)
    else:
        await outbox.write(data)


def make_yamux_quick() -> None:
    """Fewer turns of the loop for a frame, and S1 (see hardening.py).

    S1: a cancelled write, or a read cancelled while it grants window, kills the whole connection. Noise has
    counted its nonce up and the frame never went out, so the peer cannot decrypt anything that follows.
    Patches the class: once is enough for the process.
    """
    setattr(Yamux, "_write_frame", _write_frame)  # noqa: B010 - mypy forbids the plain assignment
    setattr(Yamux, "handle_incoming", _handle_incoming_quickly)  # noqa: B010
