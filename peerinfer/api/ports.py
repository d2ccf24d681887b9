"""What the HTTP face needs of a node, and nothing more."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from peerinfer.core.types import PeerId
from peerinfer.node.events import Events
from peerinfer.node.reply import Incoming, Reply
from peerinfer.node.totals import Totals


class Telling(Protocol):
    """What can tell how it is doing; none of the plain functions may block."""

    @property
    def peer_id(self) -> PeerId:
        """This node."""

    @property
    def ready(self) -> bool:
        """A completion would be answered now, here or by a peer."""

    def status(self) -> dict[str, object]:
        """The body of `/peerinfer/v1/status` (docs/schema/status.json)."""

    def peers(self) -> dict[str, object]:
        """The body of `/peerinfer/v1/peers` (docs/schema/peers.json)."""

    def decision(self, request_id: str) -> dict[str, object] | None:
        """The body of `/peerinfer/v1/requests/{id}` (docs/schema/decision.json); None if it is not kept."""

    def dropped_http(self, reason: str) -> None:
        """What a client sent was refused for what it is, before it became a request of the node's: count it.

        That is bytes that are no HTTP, a websocket, a foreign host, and every `BadRequestError`: `handle`
        was not called, so `requests.received` does not count it. A model or a path that is not here is no
        offence and is not counted. `reason` is one of a few short words.
        """


class Serving(Telling, Protocol):
    """A node as its HTTP face sees it: it answers completions, too."""

    def handle(self, incoming: Incoming) -> AbstractAsyncContextManager[Reply]:
        """Answer a request: entering returns when the first chunk is there.

        Leaving cancels the work, wherever it runs. Entering raises `RequestError`, and so does iterating
        over the reply's chunks when the answer breaks off.
        """

    def at_work(self) -> AbstractContextManager[None]:
        """A client's request is in progress within this block, to the last byte of its response; a node that
        leaves gracefully waits for that."""

    def models(self) -> list[str]:
        """The names under which completions are answered."""

    def totals(self) -> Totals:
        """What clients' requests came to, for `/metrics`."""

    def events(self) -> Events:
        """What happens from now on (docs/schema/events.json)."""
