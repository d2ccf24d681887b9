"""What happens at a running node, a line each: its engine's state, peers that come, go or fall silent.

Looked at once a second, from what the node shows on its own JSON; what comes and goes within a second is
not worth a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import trio

from peerinfer.cli.show import short

LOOK_INTERVAL_S = 1.0


class NodeEvents:
    """Turns successive looks at a node into lines about what changed."""

    def __init__(self, engine_state: str | None = None) -> None:
        self._engine_state = engine_state
        self._peers: dict[str, str] = {}

    def changes(self, status: Mapping[str, Any], peers: Mapping[str, Any]) -> Iterator[str]:
        """The lines since the last call; `status` and `peers` as in the node's own JSON."""
        state = status.get("engine_state")
        if state != self._engine_state:
            yield f"engine {state}"
            self._engine_state = state
        now = {peer["peer_id"]: str(peer["state"]) for peer in peers.get("peers", ())}
        for peer, state in now.items():
            before = self._peers.get(peer)
            if before is None:
                yield f"peer {short(peer)} joined ({state})"
            elif before != state:
                yield f"peer {short(peer)} is {state}"
        for peer in self._peers.keys() - now.keys():
            yield f"peer {short(peer)} left"
        self._peers = now


async def watch(
    look: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]],
    say: Callable[[str], None],
    *,
    engine_state: str | None,
) -> None:
    """Say what changes until cancelled. `look` gives the node's status and peers."""
    events = NodeEvents(engine_state)
    while True:
        for line in events.changes(*look()):
            say(line)
        await trio.sleep(LOOK_INTERVAL_S)
