"""Where an engine publishes its cache events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_WILDCARDS = ("*", "0.0.0.0", "::", "[::]")
_PORTS = range(1, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEndpoints:
    """The two ZeroMQ addresses of one publisher, and what it says of itself."""

    live: str
    """Where a SUB socket connects, e.g. `tcp://127.0.0.1:5557`."""
    replay: str | None = None
    """Where a DEALER socket asks for what was missed; None where nothing is kept for replay."""
    topic: str = ""
    """What to subscribe to; empty is everything."""
    block_size: int | None = None
    """Tokens per block, where the server says it."""
    sglang_names: bool = False
    """Blocks are named as SGLang names them, by `sglang_block_hashes`."""


def read_kv_endpoints(server_info: Mapping[str, object], *, host: str) -> KvEndpoints | None:
    """What SGLang's `/server_info` says of its events; None where it publishes none that can be followed.

    `host` is the server's own name or address, for a publisher that listens on all of its addresses. A
    server of several data-parallel ranks has a cache for each, and no client can tell which rank serves it:
    none of them is followed.
    """
    described = server_info.get("kv_events")
    if not isinstance(described, Mapping) or described.get("dp_size", 1) != 1:
        return None
    port, replay_port = described.get("endpoint_port_base"), described.get("replay_endpoint_port_base")
    topic, block_size = described.get("topic", ""), described.get("block_size")
    named = described.get("endpoint_host")
    if port not in _PORTS or not isinstance(named, str) or not isinstance(topic, str):
        return None
    if named in _WILDCARDS:
        named = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return KvEndpoints(
        live=f"tcp://{named}:{port}",
        replay=f"tcp://{named}:{replay_port}" if replay_port in _PORTS else None,
        topic=topic,
        block_size=block_size if isinstance(block_size, int) and block_size > 0 else None,
        sglang_names=True,
    )
