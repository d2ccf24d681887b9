"""Checks requests: exactly one result each, at most one hop, no token twice and none missing.

What the simulated engine answers is a function of the prompt, so every stream can be told from the right
one. A forwarded request must come straight from the node where its client is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from peerinfer.core.frames import Ask, Request
from peerinfer.core.types import PeerId
from peerinfer.engine.simulated_language import expected_answer
from peerinfer.node.ports import Call

if TYPE_CHECKING:
    from peerinfer.sim.client import Client
    from peerinfer.sim.place import Place
    from peerinfer.sim.spec import Outcome

ENTRY_DIED = frozenset({"the entry node died", "connection refused"})
GRACE_S = 5.0
"""Beyond its deadline a request may have to wait for a cancel to be confirmed."""


@dataclass(slots=True)
class _Asked:
    client: Client
    entry_died: bool = False


class RequestChecker:
    """See the module."""

    def __init__(self, violation: Callable[[str], None]) -> None:
        self._violation = violation
        self._open: dict[str, _Asked] = {}
        self._entries: dict[str, PeerId] = {}

    def watch(self, place: Place) -> None:
        """Put ourselves between the parts of a new node."""
        node: Any = place.node
        serve_call = node.serve_call

        async def watched_serve(call: Call, opening: Request | Ask) -> None:
            if isinstance(opening, Request) and self._entries.get(opening.id) != call.peer:
                self._violation(
                    f"{opening.id} came to {place.peer_id} from {call.peer}, "
                    f"but its client is at {self._entries.get(opening.id)}"
                )
            await serve_call(call, opening)

        node.serve_call = watched_serve

    def died(self, place: Place) -> None:
        """The clients of this node get no answers any more."""
        for asked in self._open.values():
            if asked.client.place is place:
                asked.entry_died = True

    def asked(self, client: Client) -> None:
        """A client's request is about to be sent."""
        self._open[client.incoming.id] = _Asked(client, entry_died=not client.place.alive)
        self._entries[client.incoming.id] = client.place.peer_id

    def ended(self, client: Client, outcome: Outcome | None) -> None:
        """A client got its outcome; None: it went away."""
        asked = self._open.pop(client.incoming.id, None)
        if asked is None:
            self._violation(f"{client.incoming.id} ended twice")
            return
        self._check_tokens(client)
        if outcome is None:
            return
        if asked.entry_died and outcome.error in ENTRY_DIED:
            return
        if client.results != 1:
            self._violation(f"{outcome.request_id} has {client.results} results: {outcome}")
        self._check_error(outcome)

    def check_over(self) -> None:
        """Every request is over by its deadline; a frozen entry node's are when it has thawed."""
        for request_id, asked in self._open.items():
            place = asked.client.place
            limit_s = place.node.context.config.request.deadline_s + GRACE_S
            if trio.current_time() > asked.client.started_at + limit_s:
                self._violation(f"{request_id} at {place.peer_id} has no result")

    def check_quiet(self, living: list[Place]) -> None:
        """Nothing is left of any request, anywhere."""
        self.check_over()
        for place in living:
            node = place.node.context
            load = place.engine.load()
            if load.running or load.queued:
                self._violation(f"{place.peer_id} still works on {load.running + load.queued} requests")
            if node.view.own_unsettled_tokens:
                self._violation(f"{place.peer_id} counts {node.view.own_unsettled_tokens} tokens as its own")
            for peer in node.view.candidates():
                if peer.unsettled_tokens:
                    self._violation(f"{place.peer_id} counts {peer.unsettled_tokens} tokens for {peer.peer}")
            if dropped := {kind: count for kind, count in node.dropped.items() if count}:
                self._violation(f"{place.peer_id} dropped {dropped}, and nobody is hostile")

    def _check_error(self, outcome: Outcome) -> None:
        if outcome.error is None:
            return
        if not re.match(r"5\d\d ", outcome.error):
            self._violation(f"{outcome.request_id} was good and got: {outcome.error}")

    def _check_tokens(self, client: Client) -> None:
        """What came is the beginning of the right answer, and with an end it is the whole of it."""
        if client.tokens is None:
            return
        output, count = bytes(client.output), client.max_tokens
        right = expected_answer(client.tokens, count)
        if not right.startswith(output):
            self._violation(f"{client.incoming.id} got {output!r} instead of {right!r}")
        elif client.end is not None:
            usage = client.end.usage
            whole = right.decode(errors="ignore").encode() == bytes(output).decode(errors="ignore").encode()
            if not whole or usage.completion_tokens != count or usage.prompt_tokens != len(client.tokens):
                self._violation(f"{client.incoming.id} got {output!r} and {usage} instead of {right!r}")
