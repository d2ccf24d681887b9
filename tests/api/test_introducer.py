"""The HTTP face of a bootstrap peer: how it is doing, behind the same guard, and no completions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import jsonschema
import pytest
import trio
from referencing import Registry, Resource

from peerinfer.api.server import open_listener, serve_telling
from peerinfer.config import HttpConfig
from peerinfer.node.introducer import Introducer
from tests.api.test_real_node import AloneOverlay
from tests.api.test_status import SCHEMAS, validator


@pytest.fixture
async def face(nursery: trio.Nursery) -> AsyncIterator[httpx.AsyncClient]:
    """A client, which shows no key by itself, of a face that wants one."""
    config = HttpConfig(port=0, port_is_default=False, api_key="sesame")
    introducer = Introducer(AloneOverlay(), swarm_key=None)

    async def serve(*, task_status: trio.TaskStatus[str]) -> None:
        await serve_telling(introducer, config, listening=open_listener(config), task_status=task_status)

    url = await nursery.start(serve)
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        yield client


async def test_it_tells_how_it_is_doing_to_who_has_the_key(face: httpx.AsyncClient) -> None:
    """Both bodies fit their schemas; who has no key is refused and counted."""
    assert (await face.get("/peerinfer/v1/status")).status_code == 401
    key = {"authorization": "Bearer sesame"}
    status = (await face.get("/peerinfer/v1/status", headers=key)).json()
    resource = Resource.from_contents(json.loads((SCHEMAS / "status.json").read_text()))
    schema = json.loads((SCHEMAS / "bootstrap_status.json").read_text())
    registry: Registry = Registry().with_resource("status.json", resource)
    jsonschema.Draft202012Validator(schema, registry=registry).validate(status)
    assert status["dropped"]["http"] == 1
    peers = (await face.get("/peerinfer/v1/peers", headers=key)).json()
    validator("peers").validate(peers)
    assert peers["links"] == []


async def test_it_is_healthy_and_answers_no_completions(face: httpx.AsyncClient) -> None:
    key = {"authorization": "Bearer sesame"}
    assert [(await face.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    for path in ("/v1/models", "/peerinfer/v1/requests/req-1"):
        assert (await face.get(path, headers=key)).status_code == 404
    refused = await face.post("/v1/chat/completions", headers=key, json={})
    assert refused.status_code == 404
    assert "a bootstrap peer, which serves no requests" in refused.json()["error"]["message"]
    listed = (await face.get("/", headers=key)).json()["endpoints"]
    assert "GET /peerinfer/v1/status" in listed
    assert not [endpoint for endpoint in listed if "/v1/chat" in endpoint]
