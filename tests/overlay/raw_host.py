"""A bare libp2p host, unhardened and free to say anything: what an attacker, or a bug, would be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from libp2p import generate_new_ed25519_identity, new_host
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from peerinfer.core.types import PeerId
from peerinfer.overlay.hardening import noise_only, silence_library_logs

LOOPBACK = "/ip4/127.0.0.1/tcp/0"


class RawHost:
    """The host and what tests do with it."""

    def __init__(self, host: Any) -> None:
        self.host = host
        self.id = PeerId(host.get_id().to_base58())

    async def connect(self, address: str) -> PeerId:
        """Connect to a full address and return its peer id."""
        where, peer = address.rsplit("/p2p/", 1)
        await self.host.get_network().dial_addr(Multiaddr(where), ID.from_base58(peer))
        return PeerId(peer)

    async def open(self, peer: PeerId, protocol: str) -> Any:
        """A stream that speaks the protocol."""
        return await self.host.new_stream(ID.from_base58(peer), [TProtocol(protocol)])


@asynccontextmanager
async def raw_host(key_pair: Any = None, **options: Any) -> AsyncIterator[RawHost]:
    """A host that listens on loopback; `options` are the library's, Noise and Ed25519 the defaults."""
    silence_library_logs()
    key_pair = key_pair or generate_new_ed25519_identity()
    listen = [Multiaddr(LOOPBACK)]
    options.setdefault("sec_opt", noise_only(key_pair))
    host = new_host(key_pair=key_pair, listen_addrs=listen, **options)
    async with host.run(listen_addrs=listen):
        yield RawHost(host)
        with trio.move_on_after(2, shield=True):
            await host.close()
