"""The peers a node knew when it stopped, so that it finds its swarm again without the one it joined by.

A small JSON file in the data directory. It is a convenience: one that cannot be read is ignored, one
that cannot be written is reported once.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from peerinfer.core.types import PeerId
from peerinfer.node.ports import Link

log = logging.getLogger("peerinfer.overlay")

KNOWN_PEERS_FILE = "known_peers.json"
KNOWN_PEERS_MAX = 64  # guess


def load_known_peers(data_dir: Path) -> dict[PeerId, tuple[str, ...]]:
    """Peers and their addresses, as far as the file makes sense."""
    try:
        content = json.loads((data_dir / KNOWN_PEERS_FILE).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {
        PeerId(peer): tuple(addr for addr in addrs if isinstance(addr, str))
        for peer, addrs in list(content.items())[:KNOWN_PEERS_MAX]
        if isinstance(addrs, list)
    }


def save_known_peers(data_dir: Path, links: Mapping[PeerId, Link]) -> None:
    """Remember the peers that are linked now; nothing changes when there are none."""
    known = {peer: list(link.addrs) for peer, link in sorted(links.items()) if link.addrs}
    if not known:
        return
    path = data_dir / KNOWN_PEERS_FILE
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(dict(list(known.items())[:KNOWN_PEERS_MAX]), indent=1))
        draft.replace(path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)
