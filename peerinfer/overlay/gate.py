"""What stands before the library's handshake: who may begin one, how many at once, and who comes through.

A connection from outside costs nothing until it is counted here: at most so many per address and second,
and so many in a handshake at the same time. Then come the swarm's key (swarm_stream.py) and Noise, and
with the other side's identity proven, the question whether this node wants it. What fails is counted and
costs its connection; the log has a line now and then, not one per stranger.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import trio
from libp2p.network.exceptions import SwarmException
from libp2p.transport.exceptions import MuxerUpgradeFailure, SecurityUpgradeFailure

from peerinfer.core.swarm_key import SwarmKey
from peerinfer.core.types import PeerId
from peerinfer.overlay.backoff import Rates
from peerinfer.overlay.contained import contained
from peerinfer.overlay.reasons import root_of
from peerinfer.overlay.swarm_stream import SwarmStream

log = logging.getLogger("peerinfer.overlay")

GREETED_WITHIN_S = 2.7  # within the timeout of a dial: who only listens is told from who is not there
LET_IN_WITHIN_S = 5.0  # guess
"""From a connection's arrival to the end of its handshake."""
ARRIVALS_PER_S_MAX = 20.0  # guess: per address
ARRIVALS_AT_ONCE_MAX = 128.0  # guess: a machine full of nodes that all come back at once
HANDSHAKES_MAX = 256  # guess: a task and a socket each
HANDSHAKES_PER_ADDRESS_MAX = 64  # guess
ADDRESSES_MAX = 1024  # guess
REASON_CHARS_MAX = 200
TOLD_EVERY_S = 60.0
"""Between two lines about strangers."""


class Gate:
    """Stands before one network's handshakes, in both directions."""

    def __init__(
        self,
        network: Any,
        *,
        key: SwarmKey | None,
        welcome: Callable[[PeerId], bool],
        refused: Callable[[str], None],
    ) -> None:
        """`refused` is told why, once for each connection from outside that did not come through."""
        self._key, self._welcome, self._refused = key, welcome, refused
        self._rates = Rates[str](
            rate_per_s=ARRIVALS_PER_S_MAX, burst=ARRIVALS_AT_ONCE_MAX, kept_max=ADDRESSES_MAX
        )
        self._shaking: Counter[str] = Counter()
        self._told_at = float("-inf")
        self._untold = 0
        upgrader = network.upgrader
        self._secure, self._multiplex = upgrader.upgrade_security, upgrader.upgrade_connection
        self._let_in = network.upgrade_inbound_raw_conn
        upgrader.upgrade_security, upgrader.upgrade_connection = self._secured, self._multiplexed
        network.upgrade_inbound_raw_conn = self._arrived

    async def _arrived(self, connection: Any, listening: Any) -> Any:
        """A connection from outside, from its first byte until it is one of the network's."""
        address = _network_of(connection, listening)
        reason = self._too_many(address)
        if reason is None:
            self._shaking[address] += 1
            try:
                return await self._let_in(connection, listening)
            except Exception as error:
                reason = _shown(root_of(error))
            finally:
                self._shaking[address] -= 1
                if not self._shaking[address]:
                    del self._shaking[address]
        else:
            with contained("closing a connection"):
                await connection.close()
        self._refused(reason)
        self._tell(address, reason)
        raise SwarmException(reason)

    def _too_many(self, address: str) -> str | None:
        if not self._rates.take(address, now=trio.current_time()):
            return "too many connections from one address"
        if self._shaking.total() >= HANDSHAKES_MAX or self._shaking[address] >= HANDSHAKES_PER_ADDRESS_MAX:
            return "too many handshakes at once"
        return None

    async def _secured(self, connection: Any, is_initiator: bool, peer_id: Any = None) -> Any:
        """The connection once key and identity are proven, and this node wants that peer."""
        within_s = GREETED_WITHIN_S if is_initiator else LET_IN_WITHIN_S
        inner = getattr(connection, "_wrapped", connection)  # a relayed one has a wrapper
        inner.stream = SwarmStream(inner.stream, key=self._key, greeted_within_s=within_s)
        secured = await self._secure(connection, is_initiator, peer_id)
        peer = PeerId(secured.get_remote_peer().to_base58())
        if not self._welcome(peer):
            await secured.close()
            raise SecurityUpgradeFailure(f"peer={peer} is not let in")
        return secured

    async def _multiplexed(self, secured: Any, peer_id: Any) -> Any:
        try:
            return await self._multiplex(secured, peer_id)
        except MuxerUpgradeFailure:
            raise MuxerUpgradeFailure("it closed the connection: it may not want this node") from None

    def _tell(self, address: str, reason: str) -> None:
        self._untold += 1
        now = trio.current_time()
        if now - self._told_at >= TOLD_EVERY_S:
            log.info("refused=%d connections, the last from %s: %s", self._untold, address, reason)
            self._told_at, self._untold = now, 0


def _network_of(connection: Any, listening: Any) -> str:
    """What one stranger can draw addresses from: an IPv4 address, a /64 of IPv6, or the relay in between."""
    try:  # the library's own way knows no IPv6
        ip = ipaddress.ip_address(connection.stream.stream.socket.getpeername()[0].partition("%")[0])
    except (AttributeError, OSError, ValueError):  # relayed, or gone again already
        return str(listening)
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


def _shown(reason: str) -> str:
    """A reason as a log may have it: the library quotes what strangers sent."""
    return "".join(each if each.isprintable() else "?" for each in reason[:REASON_CHARS_MAX])
