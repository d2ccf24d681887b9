"""`/v1/models`: what this node answers for, itself or through its peers."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from peerinfer.api.errors import ErrorResponse
from peerinfer.api.ports import Serving
from peerinfer.core.types import RequestError


def model_routes(node: Serving) -> list[Route]:
    """`/v1/models` and `/v1/models/{id}`; an id may contain slashes."""
    created = int(time.time())

    def describe(name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": created, "owned_by": "peerinfer"}

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [describe(name) for name in node.models()]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name in node.models():
            return JSONResponse(describe(name))
        message = f"The model {name[:200]!r} does not exist here; see /v1/models."
        return ErrorResponse(RequestError(message, status=404, code="model_not_found", param="model"))

    return [Route("/v1/models", models), Route("/v1/models/{name:path}", model)]
