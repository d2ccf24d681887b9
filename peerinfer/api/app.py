"""The routes of the HTTP face, and what stands before all of them.

Whatever goes wrong is told in OpenAI's error shape. A bug is logged here with its traceback, once, and
a client only learns that there was one.
"""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from peerinfer.api.access import CHALLENGE, KeyPolicy
from peerinfer.api.completions import Completions
from peerinfer.api.errors import BadRequestError, ErrorResponse, internal_error
from peerinfer.api.events import events_routes
from peerinfer.api.metrics import metrics_routes
from peerinfer.api.models import model_routes
from peerinfer.api.ports import Serving, Telling
from peerinfer.api.security import HostPolicy
from peerinfer.api.status import status_routes
from peerinfer.config import HttpConfig
from peerinfer.core.types import RequestError

log = logging.getLogger("peerinfer.api")

ENDPOINTS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "GET /v1/models",
    "GET /peerinfer/v1/status",
    "GET /peerinfer/v1/peers",
    "GET /peerinfer/v1/requests/{id}",
    "GET /peerinfer/v1/events",
    "GET /metrics",
    "GET /healthz",
    "GET /readyz",
)
TELLING_ENDPOINTS = (
    "GET /peerinfer/v1/status",
    "GET /peerinfer/v1/peers",
    "GET /healthz",
    "GET /readyz",
)
OPENAI_METHODS = ("GET", "POST")


def build_app(node: Serving, config: HttpConfig, hosts: HostPolicy) -> ASGIApp:
    """The whole face as one ASGI application."""

    async def index(_: Request) -> Response:
        return JSONResponse({"name": "peerinfer", "peer_id": node.peer_id, "endpoints": ENDPOINTS})

    completions = {
        "/v1/chat/completions": Completions(node, config, "chat"),
        "/v1/completions": Completions(node, config, "completions"),
    }
    starlette = Starlette(
        routes=[
            *(Route(path, app, methods=["POST"]) for path, app in completions.items()),
            *model_routes(node),
            *status_routes(node),
            *events_routes(node),
            *metrics_routes(node),
            Route("/", index),
        ],
        exception_handlers={HTTPException: _no_such_route, Exception: _bug},
    )
    starlette.router.redirect_slashes = False

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette's way to a route took longer than the route (measured), so these two are found here.
        known = completions.get(scope["path"]) if scope["method"] == "POST" else None
        await (known or starlette)(scope, receive, send)

    return Guard(app, node, hosts, KeyPolicy(config.api_key))


def build_telling_app(peer: Telling, config: HttpConfig, hosts: HostPolicy) -> ASGIApp:
    """The face of a peer that serves no requests: how it is doing, behind the same guard."""

    async def index(_: Request) -> Response:
        return JSONResponse({"name": "peerinfer", "peer_id": peer.peer_id, "endpoints": TELLING_ENDPOINTS})

    starlette = Starlette(
        routes=[
            *status_routes(peer),
            Route("/", index),
            Route("/v1/{path:path}", _no_engine, methods=OPENAI_METHODS),
        ],
        exception_handlers={HTTPException: _no_such_route, Exception: _bug},
    )
    return Guard(starlette, peer, hosts, KeyPolicy(config.api_key))


class Guard:
    """Lets requests for this node through, and nothing else."""

    def __init__(self, app: ASGIApp, node: Telling, hosts: HostPolicy, keys: KeyPolicy) -> None:
        self._app = app
        self._node = node
        self._hosts = hosts
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            self._node.dropped_http("websocket")
            await send({"type": "websocket.close"})
            return
        try:
            self._hosts.check(scope["headers"])
            self._keys.check(scope["path"], scope["headers"])
        except BadRequestError as error:
            self._node.dropped_http(error.reason)
            extra = CHALLENGE if error.status == 401 else []
            await ErrorResponse(error, extra)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except Exception:
            log.exception("path=%s failed by a bug", scope["path"])


async def _no_engine(_: Request) -> ErrorResponse:
    message = "This is a bootstrap peer, which serves no requests: ask a node that `peerinfer serve` started."
    return ErrorResponse(RequestError(message, status=404, code="unknown_url"))


async def _no_such_route(request: Request, error: Exception) -> ErrorResponse:
    assert isinstance(error, HTTPException)
    extra = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
    if error.status_code == 405:
        message = f"{request.url.path[:200]} does not take {request.method}."
        return ErrorResponse(RequestError(message, status=405, code="method_not_allowed"), extra)
    message = f"There is no {request.url.path[:200]} here; GET / lists what there is."
    return ErrorResponse(RequestError(message, status=error.status_code, code="unknown_url"), extra)


async def _bug(_request: Request, _error: Exception) -> ErrorResponse:
    return ErrorResponse(internal_error())
