"""A peer without an engine: it introduces nodes to each other, passes connections on, and tells how it does.

No topic, no trees, and every request is refused. A node that asks what it serves is told its role, so that it
shows up as a bootstrap peer and not as a silent one.
"""

from __future__ import annotations

import logging
from collections import Counter

import trio

from peerinfer.core.fingerprint import ROLE_FIELD, Hello, encode_hello
from peerinfer.core.frames import Ask, Refuse, Request
from peerinfer.core.swarm_key import SwarmKey
from peerinfer.core.types import PeerId
from peerinfer.node.ports import Call, Overlay
from peerinfer.node.report import dropped_json, link_json, network_json

log = logging.getLogger("peerinfer.node")

ROLE = "bootstrap"
LOOK_S = 5.0  # guess
"""Between two looks at what it does for others. Lower: more lines in the log where many come and go."""


class Introducer:
    """What an overlay reports to on a peer that only introduces others, and what its HTTP face asks."""

    def __init__(self, overlay: Overlay, *, swarm_key: SwarmKey | None) -> None:
        self._overlay, self._swarm_key = overlay, swarm_key
        self._started_at = trio.current_time()
        self._dropped: Counter[str] = Counter()

    async def run(self) -> None:
        """Log how many it has to do with whenever that has changed, for ever."""
        told: tuple[int, ...] = (0, 0, 0)
        while True:
            standing = self._overlay.standing()
            now = (len(self._overlay.links()), standing.reservations, standing.circuits)
            if now != told:
                told = now
                log.info("peers=%d reservations=%d circuits=%d", *now)
            await trio.sleep(LOOK_S)

    # For the HTTP face

    @property
    def peer_id(self) -> PeerId:
        """This peer."""
        return self._overlay.peer_id

    @property
    def ready(self) -> bool:
        """It listens; a completion is answered by nobody here."""
        return True

    def status(self) -> dict[str, object]:
        """The body of `/peerinfer/v1/status`."""
        return {
            "peer_id": self.peer_id,
            "role": ROLE,
            "addrs": list(self._overlay.addrs()),
            "swarm_key_id": self._swarm_key.key_id if self._swarm_key else None,
            "network": network_json(self._overlay),
            "uptime_s": trio.current_time() - self._started_at,
            "dropped": dropped_json(self._dropped),
        }

    def peers(self) -> dict[str, object]:
        """The body of `/peerinfer/v1/peers`: it has no view of the swarm, only links."""
        links = sorted(self._overlay.links().items())
        return {
            "peers": [],
            "foreign": [],
            "links": [
                {"peer_id": peer, "addrs": list(link.addrs), "link": link_json(link)} for peer, link in links
            ],
        }

    def decision(self, _request_id: str) -> dict[str, object] | None:
        """It takes no requests."""
        return None

    def dropped_http(self, reason: str) -> None:
        """An HTTP request was refused."""
        self.dropped("http", None, reason)

    # OverlaySink

    def gossip(self, peer: PeerId, payload: bytes) -> None:
        """There is no topic here."""

    def link_up(self, peer: PeerId) -> None:
        """The overlay has logged it."""

    def link_down(self, peer: PeerId) -> None:
        """The overlay has logged it."""

    async def serve_call(self, call: Call, opening: Request | Ask) -> None:
        """Refuse at once; the asking node tries the next target."""
        await call.send(Refuse(id=opening.id, code="not_ready", message="a bootstrap peer has no engine"))

    def hello(self) -> bytes:
        """A role in place of a fingerprint's fields, which no node shares."""
        return encode_hello(Hello(fields={ROLE_FIELD: ROLE}, snapshot=b""))

    def dropped(self, kind: str, peer: PeerId | None, reason: str) -> None:
        """Count what was refused."""
        self._dropped[kind] += 1
        log.debug("dropped kind=%s peer=%s reason=%s", kind, peer, reason)
