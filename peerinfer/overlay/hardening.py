"""What py-libp2p 0.8.1 gets wrong, and what keeps a node alive in spite of it.

Five defects (S1-S5) let a cancelled task, a peer's bytes or bad timing take down a connection or the
whole host. Behind them stand those that lose messages, waste frames and leak. Each has one function here
(S1: in quick_yamux.py) that says what is wrong, and a test that fails without it. None of it holds for
another version than the one that pyproject.toml pins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from libp2p.crypto.x25519 import create_new_key_pair as create_x25519_key_pair
from libp2p.custom_types import TProtocol
from libp2p.exceptions import ParseError
from libp2p.kad_dht import kad_dht as kad_dht_module
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.exceptions import StreamError
from libp2p.protocol_muxer import multiselect_communicator
from libp2p.pubsub import gossipsub as gossipsub_module
from libp2p.pubsub import pubsub as pubsub_module
from libp2p.pubsub.utils import maybe_consume_signed_record
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import YamuxStream
from libp2p.tools.anyio_service import background_trio_service
from libp2p.tools.anyio_service.trio_manager import TrioManager
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from peerinfer.core.types import PeerId
from peerinfer.overlay.contained import contained
from peerinfer.overlay.flood import Flood
from peerinfer.overlay.intake import granted_again
from peerinfer.overlay.quick_stream import RESET_S, one_frame

log = logging.getLogger("peerinfer.overlay")


Report = Callable[[str, str, Exception], None]
"""Called with a peer id in base58, a protocol id and what its bytes raised; must not raise."""


def guard_streams(network: Any, report: Report, flood: Flood) -> None:
    """S2: an exception that leaves any stream's handler takes down the host, garbage on meshsub for one.

    Before it is negotiated, a stream counts for its peer's rate.
    """
    handle = network.common_stream_handler

    async def guarded(stream: Any) -> None:
        peer = PeerId(stream.muxed_conn.peer_id.to_base58())
        stream.flood = flood
        try:
            if flood.lets_open(peer):
                await handle(stream)
                return
        except Exception as error:
            report(peer, str(stream.get_protocol()), error)
        with contained("resetting a stream", peer=peer), trio.move_on_after(RESET_S, shield=True):
            await stream.reset()

    network.set_stream_handler(guarded)


_run_connection = SwarmConn.start


async def _run_connection_guarded(self: Any) -> None:
    try:
        await _run_connection(self)
    except Exception as error:
        peer = PeerId(self.muxed_conn.peer_id.to_base58())
        log.warning("peer=%s its connection failed: %r", peer, error)
        with contained("closing its connection", peer=peer), trio.move_on_after(RESET_S, shield=True):
            await self.close()


def guard_connections() -> None:
    """What goes wrong around a stream's handler, in a connection's own task, takes down the host as well.

    It costs the connection. Patches the class: once is enough for the process.
    """
    setattr(SwarmConn, "start", _run_connection_guarded)  # noqa: B010


def guard_gossip(pubsub: Any, router: Any, report: Report) -> None:
    """S3: a topic validator or a control message that raises takes down the host.

    Both run in tasks of the pubsub service, outside of any stream's handler: a validator as part of
    `push_msg`, a GRAFT for an unknown topic as part of `handle_rpc`.
    """
    protocol = str(router.get_protocols()[0])

    def guard(owner: Any, name: str, peer_at: int) -> None:
        call: Callable[..., Awaitable[None]] = getattr(owner, name)

        async def guarded(*args: Any) -> None:
            try:
                await call(*args)
            except Exception as error:
                report(args[peer_at].to_base58(), protocol, error)

        setattr(owner, name, guarded)

    guard(pubsub, "push_msg", 0)
    guard(router, "handle_rpc", 1)
    guard(router, "on_peer_subscribed", 0)
    router.heartbeat = _again_after_errors(router.heartbeat)


def _again_after_errors(heartbeat: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def beat() -> None:
        while True:
            try:
                await heartbeat()
            except Exception as error:
                log.warning("gossip heartbeat failed, goes on: %r", error)
                await trio.sleep(1)

    return beat


def noise_only(key_pair: Any) -> dict[TProtocol, Any]:
    """S4: by default a host accepts plaintext, and offers secio. The only security option is Noise."""
    noise_key = create_x25519_key_pair().private_key
    return {NOISE: NoiseTransport(key_pair, noise_privkey=noise_key)}


@asynccontextmanager
async def services_running(services: list[Any]) -> AsyncIterator[None]:
    """S5: a peer that comes in before pubsub runs crashes it. Enter this before the listener.

    The services run and are ready when it is entered, in the order given.
    """
    if not services:
        yield
        return
    async with background_trio_service(services[0]), services_running(services[1:]):
        if hasattr(services[0], "wait_until_ready"):
            await services[0].wait_until_ready()
        yield


_write_in_frames = YamuxStream.write


async def _write_alone(self: Any, data: bytes) -> None:
    async with self.__dict__.setdefault("_one_writer", trio.Lock()):
        frame = one_frame(self, data)
        if frame is None:
            await _write_in_frames(self, data)
        else:
            await self.conn._write_frame(frame)


def write_messages_whole() -> None:
    """Two tasks that write to one stream mix their messages as soon as one is longer than a frame.

    Pubsub does that whenever a peer subscribes: what it replays goes out beside the peer's queue, and
    the peer finds no message in the result. Patches the class: once is enough for the process.
    """
    setattr(YamuxStream, "write", _write_alone)  # noqa: B010


def keep_subscriptions(pubsub: Any) -> None:
    """When one stream to a peer breaks, pubsub forgets what the peer subscribed to, and opens a new stream.

    The peer, whose own stream is whole, never says it again: it would get no message any more until it
    is disconnected. Subscriptions end with the last connection.
    """
    forget = pubsub._forget_all_subscriptions

    def forget_if_gone(peer: Any) -> None:
        if pubsub._peer_is_connected(peer):
            pubsub._replayed_recent_topics.pop(peer, None)
        else:
            forget(peer)

    pubsub._forget_all_subscriptions = forget_if_gone


def open_gossip_again(pubsub: Any) -> None:
    """A stream for gossip whose negotiation has failed is not tried again while the link stands.

    The library tries on, with backoff, after one kind of error, and a peer that is busy for the seconds of a
    negotiation ends in another: it then misses all that this node publishes itself. Only who says that it
    does not speak the protocol is taken at its word.
    """
    register = pubsub._handle_new_peer

    async def register_or_try_on(peer: Any) -> None:
        try:
            await register(peer)
        except Exception as error:
            if str(error.__cause__).startswith("protocols not supported"):
                raise
            raise SwarmException(f"no stream for gossip: {error!r}") from error

    pubsub._handle_new_peer = register_or_try_on


async def _grant_window_in_halves(self: Any, *, bytes_read: int = 0) -> None:
    async with self.window_lock:
        kept = len(self.conn.stream_buffers.get(self.stream_id, b""))
        granted = granted_again(self, bytes_read, kept=kept)
    if granted:
        await self.send_window_update(granted)


def grant_window_in_halves() -> None:
    """Every read answers with a frame that grants its bytes to the sender again; see `granted_again`.

    Patches the class: once is enough for the process.
    """
    setattr(YamuxStream, "_auto_tune_and_send_window_update", _grant_window_in_halves)  # noqa: B010


def bound_gossip_memory(pubsub: Any, router: Any) -> None:
    """What the router keeps for features that are off, and would keep for ever or in whole messages."""
    router._check_equivocation = lambda _message: True  # held the last 1,000 messages; ids are deduplicated
    router.recent_message_deliveries = _Forgetful()  # one float per message, trimmed only by adaptive gossip
    pubsub.counter = time.time_ns()
    """Sequence numbers began at the time in seconds: whoever published faster than 1/s and restarted
    used numbers again, and its peers dropped its first messages as seen."""


class _Forgetful(dict[str, Any]):
    """A mapping of lists that keep nothing."""

    def __missing__(self, key: str) -> list[Any]:
        return []


def limit_messages() -> None:
    """What a peer may send on one stream without end is decoded and answered as fast as it comes.

    Messages beyond a peer's rate end their stream undecoded. Patches two modules: once is enough.
    """
    limits: tuple[tuple[Any, Any], ...] = (
        (pubsub_module, Flood.lets_pass_on),
        (kad_dht_module, Flood.lets_look_up),
    )
    for module, lets in limits:
        module.read_varint_prefixed_bytes_limited = partial(_read_if_let, lets)


RECORD_KNOWN_S = 60.0
RECORDS_MAX = 1024


def remember_records() -> None:
    """Each message of gossip brings its sender's signed addresses along: they are verified once a minute.

    Patches two modules: once is enough. Measured: a tenth of what gossip costs.
    """
    for module in (pubsub_module, gossipsub_module):
        setattr(module, "maybe_consume_signed_record", _consume_if_new)  # noqa: B010


def _consume_if_new(message: Any, host: Any, peer_id: Any) -> bool:
    if not message.HasField("senderRecord"):
        return True
    known: dict[Any, tuple[bytes, float]] = host.__dict__.setdefault("_known_records", {})
    now = trio.current_time()
    record, until = known.get(peer_id, (b"", 0.0))
    if record == message.senderRecord and now < until:
        return True
    if not maybe_consume_signed_record(message, host, peer_id):
        return False
    if len(known) >= RECORDS_MAX:
        known.clear()
    known[peer_id] = (message.senderRecord, now + RECORD_KNOWN_S)
    return True


async def _read_if_let(lets: Callable[[Flood, PeerId], bool], stream: Any, bytes_max: int) -> bytes:
    message: bytes = await read_varint_prefixed_bytes_limited(stream, bytes_max)
    flood = getattr(stream, "flood", None)
    if flood is not None and not lets(flood, PeerId(stream.muxed_conn.peer_id.to_base58())):
        raise StreamError("too many messages")
    return message


def look_for_no_parents() -> None:
    """Each message of gossip is a task, and for each task the library looks through all others of its service
    for the one that started it, to cancel it before that one. At its end a service cancels all anyway.

    Patches the class: once is enough. Measured: in a swarm of 64, a twelfth of a busy node's CPU time.
    """
    setattr(TrioManager, "_find_parent_task", lambda _self, _task: None)  # noqa: B010


def keep_no_values(dht: Any) -> None:
    """Whatever a peer puts into the Kademlia table of values and providers is kept, and told to others.

    This network looks up peers and nothing else.
    """

    def forget(*_: Any) -> None:
        """Take it and keep nothing."""

    dht.value_store.put_record = dht.value_store.put = dht.provider_store.add_provider = forget


NEGOTIATION_BYTES_MAX = 64 * 1024
"""go-libp2p's limit of a message that names a protocol."""


async def _read_delim_bounded(reader: Any) -> bytes:
    line: bytes = await read_varint_prefixed_bytes_limited(reader, NEGOTIATION_BYTES_MAX)
    if not line.endswith(b"\n"):
        raise ParseError("not delimited")
    return line[:-1]


def bound_negotiation() -> None:
    """A line of a negotiation may be 2^64 bytes long by its own word, and is kept in memory as it comes.

    Strangers negotiate before they have proven anything. Patches the module: once is enough.
    """
    setattr(multiselect_communicator, "read_delim", _read_delim_bounded)  # noqa: B010


def silence_library_logs() -> None:
    """The library logs failed dials as multi-line errors; the overlay has lines of its own."""
    for name in [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "libp2p"]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    logging.root.addFilter(_not_from_library)


def _not_from_library(record: logging.LogRecord) -> bool:
    """Parts of the library write to the root logger itself."""
    return record.levelno >= logging.CRITICAL or "/libp2p/" not in record.pathname
