"""An engine's cache events over ZeroMQ, in order and without gaps, or with the word that there was one.

Theory of operation. SGLang and vLLM publish batches of events, numbered from 0, and keep the last ones for
replay. The stream is followed live; whenever something may be missing (a gap in the numbers, a connection
that came back, a quiet moment in which the last message may have been lost), the publisher is asked for
everything from the last message on. That last message must come back byte for byte: else the publisher is
another one, its cache began empty, and so does the tree. What no replay can bring back is given up: the
cache counts as empty (`AllBlocksCleared`) and is learned anew, from the oldest batch that is kept. So the
tree may lag, and may claim too little, but it does not go on claiming what a lost event took away.

`complete` tells whether all that the engine holds is known. While it is not, answers teach: see
engine/kv_event_watch.py. Paper: updateTrie and evictLRUTrie, as the engine decides them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import trio
import zmq
from zmq.utils.monitor import parse_monitor_message

from peerinfer.core.types import AllBlocksCleared, BlockStored, CacheEvent
from peerinfer.engine.kv_endpoints import KvEndpoints
from peerinfer.engine.kv_event_codec import EventDecodeError, decode_batch, sglang_block_hashes
from peerinfer.engine.kv_event_order import EventOrder, Verdict
from peerinfer.engine.kv_event_watch import BlockLedger, Watch
from peerinfer.engine.kv_replay import Replay, ReplayFailedError, read_seq
from peerinfer.engine.zmq_socket import ZmqSocket

log = logging.getLogger("peerinfer.engine")

QUEUE_MAX = 1000  # guess; messages that wait to be read, beyond which ZeroMQ drops and replay repairs
MESSAGE_BYTES_MAX = 16 * 1024 * 1024  # guess: a batch of three million tokens
HEARTBEAT_MS = 2000  # guess: notices a publisher that is gone without a word


class KvEventSink(Protocol):
    """Where the stream reports; called from the task that runs it, and must not block."""

    def cache_events(self, events: Sequence[CacheEvent]) -> None:
        """The engine's cache changed, in this order."""

    def events_restarted(self) -> None:
        """The publisher is a new one, so the engine's cache began empty; `cache_events` said so already."""

    def events_reachable(self, reachable: bool, detail: str) -> None:
        """Whether the stream is followed, when that changes. While it is not, nothing is claimed."""


@dataclass(slots=True)
class KvEventCounts:
    """What became of a stream so far."""

    batches: int = 0
    replayed: int = 0
    """Batches that only a replay brought."""
    gaps: int = 0
    rebuilds: int = 0
    """Times that the cache had to be given up as unknown."""
    restarts: int = 0
    undecodable: int = 0
    left_out: int = 0
    """Blocks that depend on more than tokens."""


class KvEventStream:
    """Follows one publisher; `run` it for as long as the engine is served through."""

    def __init__(
        self,
        endpoints: KvEndpoints,
        sink: KvEventSink,
        *,
        poll_interval_s: float = 0.5,  # so a lost last message is made good within a second
        replay_timeout_s: float = 2.0,  # measured: SGLang looks every 0.1 s; more while it is busy
        lost_after_s: float = 3.0,  # guess
    ) -> None:
        self.counts = KvEventCounts()
        self.complete = False
        """Everything that the engine holds has been told."""
        self._endpoints = endpoints
        self._sink = sink
        self._poll_interval_s = poll_interval_s
        self._replay_timeout_s = replay_timeout_s
        self._lost_after_s = lost_after_s
        self._order = EventOrder()
        self._ledger = BlockLedger()
        self._named_by_sglang = False  # seen to be true, not only said
        self._block_size = endpoints.block_size
        self._replay: Replay | None = None
        self._behind = False
        self._missing = False
        self._doubtful = False
        self._reachable: bool | None = None
        self._connected = False
        self._broken = False
        self._sure_at = 0.0
        self._waiting = trio.CancelScope()

    async def run(self) -> None:
        """Follow until cancelled."""
        context = zmq.Context()
        try:
            live = context.socket(zmq.SUB)
            live.setsockopt(zmq.RCVHWM, QUEUE_MAX)
            live.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            live.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            live.subscribe(self._endpoints.topic)
            monitor = live.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            if self._endpoints.replay is not None:
                self._replay = Replay(context, self._endpoints.replay, timeout_s=self._replay_timeout_s)
            self._behind, self._sure_at = True, trio.current_time()
            live.connect(self._endpoints.live)
            async with trio.open_nursery() as nursery:
                connection = ZmqSocket(monitor)
                nursery.start_soon(self._watch_connection, connection)
                await self._follow(ZmqSocket(live), connection)
        finally:
            self._replay = None
            context.destroy(linger=0)

    @contextmanager
    def watch(self, token_ids: Sequence[int] | None) -> Iterator[RequestWatch]:
        """Follow a request, from before it is sent. No tokens, please, if they do not decide its blocks."""
        names = None
        if token_ids is not None and self._named_by_sglang and self._block_size is not None:
            names = sglang_block_hashes(token_ids, self._block_size)
        with self._ledger.watch(names) as watch:
            yield RequestWatch(self, watch, token_ids or ())

    async def covered(
        self, watch: Watch, token_ids: Sequence[int], cached_tokens: int, *, within_s: float
    ) -> bool:
        """See `RequestWatch.covered`."""
        size = self._block_size or 1
        if not self.complete and (proven := watch.proven(cached_tokens // size)):
            self._tell([BlockStored(proven, None, tuple(token_ids[: len(proven) * size]), size)])
        if cached_tokens // size >= (len(token_ids) - 1) // size:
            return True
        return bool(self._reachable) and await watch.stored(within_s=within_s)

    # The live stream

    async def _follow(self, live: ZmqSocket, connection: ZmqSocket) -> None:
        while True:
            if self._behind:
                await self._catch_up()
            frames: list[bytes] = []
            with trio.move_on_after(self._poll_interval_s) as self._waiting:
                frames = await live.receive()
            while (change := connection.receive_nowait()) is not None:
                self._connection_changed(change)
            if self._broken:
                self._begin_doubting(live)
            elif frames:
                if self._behind:
                    await self._catch_up()
                if not self._behind:
                    self._receive(frames)
            else:
                self._behind = True  # the last message may be the one that was lost

    def _receive(self, frames: Sequence[bytes]) -> None:
        try:
            if len(frames) != 3:
                raise EventDecodeError(f"a message of {len(frames)} frames")
            seq, payload = read_seq(frames[1]), frames[2]
        except EventDecodeError as error:
            self._undecodable(error)
            return
        match self._order.judge(seq, payload):
            case _ if self._order.anchor is None and self._replay is None:
                self._start_at(seq, payload)
            case Verdict.NEXT:
                self._take(seq, payload)
            case Verdict.REPEAT:
                pass
            case Verdict.GAP:
                self.counts.gaps += 1
                self._missing = self._behind = True
                if self._replay is None:
                    self._give_up(f"messages before {seq} were lost, and nothing is kept for replay")
                    self._start_at(seq, payload)
            case Verdict.RESTART:
                self._restarted()
                self._behind = True
                if self._replay is None:
                    self._start_at(seq, payload)

    def _start_at(self, seq: int, payload: bytes) -> None:
        """The first message that is known; what came before it, if anything did, is not."""
        self.complete = seq == 0
        self._take(seq, payload)

    def _take(self, seq: int, payload: bytes) -> None:
        self._order.take(seq, payload)
        self._sure_at = trio.current_time()
        self.counts.batches += 1
        try:
            batch = decode_batch(payload)
        except EventDecodeError as error:
            self._undecodable(error)
            self._order.take(seq, payload)
            return
        self.counts.left_out += batch.left_out
        self._tell([event for event in batch.events if self._is_plain(event)])

    def _tell(self, events: Sequence[CacheEvent]) -> None:
        if events:
            self.complete |= any(isinstance(event, AllBlocksCleared) for event in events)
            self._sink.cache_events(events)
            self._ledger.note(events)

    def _is_plain(self, event: CacheEvent) -> bool:
        """Not a prompt's first blocks whose name has more in it than tokens (SGLang's `extra_key`)."""
        if not isinstance(event, BlockStored):
            return True
        self._block_size = self._block_size or event.block_size
        if not self._endpoints.sglang_names or event.parent_block_hash is not None:
            return True
        named = sglang_block_hashes(event.token_ids[: event.block_size], event.block_size)
        plain = named == event.block_hashes[:1]
        self._named_by_sglang |= plain
        if plain or not self._named_by_sglang:
            return True
        self.counts.left_out += len(event.block_hashes)
        return False

    # When something is missing

    async def _catch_up(self) -> None:
        """Get what the publisher still keeps of what was missed; give up what it does not."""
        self._behind, missing = False, self._missing
        if self._replay is None:
            return
        taken = -1
        try:
            with trio.CancelScope() as self._waiting:
                while await self._replay_once(stuck=taken == self.counts.batches):
                    taken = self.counts.batches
        except (ReplayFailedError, EventDecodeError) as error:
            self._replay.close()
            self._behind = self._doubtful
            if self._missing:
                self._give_up(str(error))
            if trio.current_time() > self._sure_at + self._lost_after_s + self._replay_timeout_s:
                self._lose(str(error))
            return
        if self._waiting.cancelled_caught:  # there is a new connection: ask there
            self._replay.close()
            self._behind = True
            return
        if missing and self._order.anchor is None:
            self._replay = None
            self._give_up(f"{self._endpoints.replay} keeps nothing for replay")
        self._missing = self._doubtful = False
        self._sure_at = trio.current_time()
        self._set_reachable(True, f"following the cache events of {self._endpoints.live}")

    async def _replay_once(self, *, stuck: bool) -> bool:
        """Ask once and take what comes; whether to ask again. `stuck`: the last time brought nothing."""
        assert self._replay is not None
        anchor = self._order.anchor
        await self._replay.ask(anchor or 0)
        confirmed, restarted, again = anchor is None, False, False
        while (reply := await self._replay.receive()) is not None:
            seq, payload = reply
            if restarted or again:
                continue  # only the end is waited for
            verdict = self._order.judge(seq, payload)
            if self._order.anchor is None:
                self._start_at(seq, payload)
            elif verdict is Verdict.RESTART:
                restarted = True
            elif verdict is not Verdict.REPEAT and (not confirmed or (verdict is Verdict.GAP and stuck)):
                self._give_up(f"messages before {seq} are not kept any more")
                self._start_at(seq, payload)
            elif verdict is Verdict.GAP:
                again = True  # the publisher dropped some of the replay, too
            elif verdict is Verdict.NEXT:
                self._take(seq, payload)
                self.counts.replayed += 1
            confirmed = True
        if restarted or not confirmed:
            self._restarted()
            return True
        if self._order.anchor is None:
            self.complete = True  # it has published nothing yet
        return again

    def _undecodable(self, error: EventDecodeError) -> None:
        """A message that cannot be read may have said anything."""
        self.counts.undecodable += 1
        self._give_up(f"a message cannot be read: {error}")

    def _give_up(self, reason: str) -> None:
        log.warning("events=%s the cache counts as empty from now on: %s", self._endpoints.live, reason)
        self.counts.rebuilds += 1
        self._forget()

    def _restarted(self) -> None:
        log.warning("events=%s the engine began again with an empty cache", self._endpoints.live)
        self.counts.restarts += 1
        self._forget()
        self._sink.events_restarted()

    def _forget(self) -> None:
        self._missing = False
        self._order.forget()
        self._tell([AllBlocksCleared()])
        self.complete = False

    # The connection

    async def _watch_connection(self, connection: ZmqSocket) -> None:
        """Notice when the publisher goes and comes: a new connection may be one to a new publisher."""
        while True:
            change: list[bytes] = []
            patience_s = math.inf if self._connected or self._reachable is False else self._lost_after_s
            with trio.move_on_after(patience_s):
                change = await connection.receive()
            if change:
                self._connection_changed(change)
            elif self._replay is None and not self._connected:
                self._lose(f"no connection to {self._endpoints.live} within {self._lost_after_s:g} s")

    def _connection_changed(self, change: list[bytes]) -> None:
        self._connected = parse_monitor_message(change)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        self._waiting.cancel()
        if not self._connected:
            self._broken = True
        elif self._replay is not None:
            self._behind = True
        else:
            self._set_reachable(True, f"following {self._endpoints.live}, where nothing is kept for replay")

    def _begin_doubting(self, live: ZmqSocket) -> None:
        """The connection broke: the next message may be another publisher's, so none is taken unconfirmed."""
        self._broken = False
        while live.receive_nowait() is not None:
            pass  # of the old connection
        self._behind = self._doubtful = self._replay is not None
        if self._replay is None and self._order.anchor is not None:
            self._give_up("the connection broke, and nothing is kept for replay")

    def _lose(self, reason: str) -> None:
        if self._reachable is not False:
            if self._order.anchor is not None:
                self._give_up(reason)
            self._set_reachable(False, reason)

    def _set_reachable(self, reachable: bool, detail: str) -> None:
        if reachable is not self._reachable:
            self._reachable = reachable
            log.log(logging.INFO if reachable else logging.WARNING, "events=%s", detail)
            self._sink.events_reachable(reachable, detail)


class RequestWatch:
    """One request at the engine that the stream follows."""

    def __init__(self, stream: KvEventStream, watch: Watch, token_ids: Sequence[int]) -> None:
        self._stream = stream
        self._watch = watch
        self._token_ids = token_ids

    async def covered(self, cached_tokens: int, *, within_s: float = 0.05) -> bool:
        """Wait for the events of an answered prompt, at most so long; whether they have come.

        `cached_tokens` is what the answer said it took from the cache. If that is all that could be, no event
        may be due, and none is waited for.
        """
        return await self._stream.covered(self._watch, self._token_ids, cached_tokens, within_s=within_s)
