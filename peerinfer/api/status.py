"""The node's own JSON: what it knows and why it did what it did. The schemas are in docs/schema/.

All of it is in memory already, so none of these waits for anybody: a peer that is down slows nothing.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from peerinfer.api.errors import ErrorResponse
from peerinfer.api.ports import Telling
from peerinfer.core.types import RequestError


def status_routes(node: Telling) -> list[Route]:
    """`/peerinfer/v1/…`, `/healthz` and `/readyz`."""

    async def status(_: Request) -> Response:
        return JSONResponse(node.status())

    async def peers(_: Request) -> Response:
        return JSONResponse(node.peers())

    async def decision(request: Request) -> Response:
        request_id = request.path_params["request_id"]
        found = node.decision(request_id)
        if found is not None:
            return JSONResponse(found)
        message = (
            f"No request {request_id[:100]!r} is kept here; ask the node that it was sent to, soon after."
        )
        return ErrorResponse(RequestError(message, status=404, code="request_not_found"))

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        if node.ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready"}, status_code=503, headers={"retry-after": "1"})

    return [
        Route("/peerinfer/v1/status", status),
        Route("/peerinfer/v1/peers", peers),
        Route("/peerinfer/v1/requests/{request_id}", decision),
        Route("/healthz", healthz),
        Route("/readyz", readyz),
    ]
