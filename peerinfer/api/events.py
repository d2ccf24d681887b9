"""`/peerinfer/v1/events`: what happens at the node, as server-sent events, for as long as somebody listens.

Each is as docs/schema/events.json says; its name is in the SSE field `event` as well as in the object. A
comment goes out when nothing else does, so that proxies keep the connection.
"""

from __future__ import annotations

import json

import trio
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from peerinfer.api.completions import SSE_HEADERS, cancel_on_disconnect
from peerinfer.api.errors import ErrorResponse
from peerinfer.api.ports import Serving
from peerinfer.core.types import RequestError
from peerinfer.node.events import Event, Listener, TooManyListenersError

QUIET_S = 15.0  # guess: proxies find a connection idle after 30 or 60 s
COMMENT = b": quiet\n\n"


def events_routes(node: Serving) -> list[Route]:
    """The one route."""
    return [Route("/peerinfer/v1/events", Feed(node), methods=["GET"])]


class Feed:
    """The ASGI application of a response that has no end."""

    def __init__(self, node: Serving) -> None:
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._node.events().listen() as listener:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_on_disconnect, receive, nursery.cancel_scope)
                    await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
                    await _relay(listener, send)
        except TooManyListenersError:
            error = RequestError(
                "Too many listen to the events of this node already.", status=503, code="too_many_listeners"
            )
            await ErrorResponse(error)(scope, receive, send)


async def _relay(listener: Listener, send: Send) -> None:
    data = COMMENT  # at once, so that the client knows that it listens
    while True:
        await send({"type": "http.response.body", "body": data, "more_body": True})
        data = COMMENT
        with trio.move_on_after(QUIET_S):
            data = sse_event(await listener.next())


def sse_event(event: Event) -> bytes:
    """An event as it goes out."""
    return f"event: {event['event']}\ndata: {json.dumps(event, ensure_ascii=True)}\n\n".encode()
