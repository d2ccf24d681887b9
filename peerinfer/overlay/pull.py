"""`/peerinfer/snapshot/1`: open, read one message, close. The answer is the node's `hello`.

It is how a node gets what it missed on the topic, and how it learns why another one is not on it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio

from peerinfer.core.errors import WireError
from peerinfer.core.types import PeerId
from peerinfer.node.ports import OverlaySink, PeerLostError
from peerinfer.overlay.backoff import Rates
from peerinfer.overlay.contained import contained
from peerinfer.overlay.framing import Deframer, with_length
from peerinfer.overlay.quick_stream import RESET_S
from peerinfer.overlay.stream_errors import READ_BYTES, STREAM_ERRORS

log = logging.getLogger("peerinfer.overlay")

SNAPSHOT_PROTOCOL = "/peerinfer/snapshot/1"
HELLO_BYTES_MAX = 512 * 1024
PULLS_PER_S_MAX = 4.0  # guess: a peer that behaves pulls once a second
PULLS_AT_ONCE_MAX = 8.0  # guess


class Pull:
    """Both sides of it."""

    def __init__(self, *, sink: OverlaySink, open_stream: Callable[[PeerId], Awaitable[Any]]) -> None:
        self._sink, self._open_stream = sink, open_stream
        self._rates = Rates[PeerId](rate_per_s=PULLS_PER_S_MAX, burst=PULLS_AT_ONCE_MAX)

    async def pull(self, peer: PeerId) -> bytes:
        """The peer's `hello`. Raises `PeerLostError`."""
        stream = await self._open_stream(peer)
        hello = Deframer(bytes_max=HELLO_BYTES_MAX)
        try:
            while True:
                for payload in hello.feed(await stream.read(READ_BYTES)):
                    return payload
        except WireError as error:
            self._sink.dropped("snapshot", peer, str(error))
            raise PeerLostError(f"refused: {error}") from None
        except STREAM_ERRORS as error:
            raise PeerLostError(f"the stream broke: {type(error).__name__}") from None
        except Exception as error:
            log.warning("peer=%s pulling from it failed: %r", peer, error)
            raise PeerLostError(f"the stream failed: {type(error).__name__}") from None
        finally:
            with contained("the end of a pull", peer=peer), trio.move_on_after(RESET_S, shield=True):
                await stream.reset()

    async def accept(self, stream: Any) -> None:
        """Answer a peer that pulls."""
        peer = PeerId(stream.muxed_conn.peer_id.to_base58())
        with contained("answering its pull", peer=peer):
            if self._rates.take(peer, now=trio.current_time()):
                with suppress(*STREAM_ERRORS):
                    await stream.write(with_length(self._sink.hello()))
                    await stream.close()
                    return
            else:
                self._sink.dropped("snapshot", peer, "too many pulls")
        with contained("resetting its pull", peer=peer):
            await stream.reset()
