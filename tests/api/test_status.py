"""The node's own JSON: routes, and schemas that hold what they promise."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.api.scripted import ME, MODEL, OTHER, Face

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"

LOAD = {
    "running": 1,
    "queued": 0,
    "queued_prefill_tokens": 12,
    "prefill_tokens_per_s": 480.5,
    "decode_tokens_per_s": 0.0,
}
STATUS = {
    "peer_id": ME,
    "model": MODEL,
    "fingerprint": "0123456789abcdef" * 2,
    "engine": "embedded",
    "engine_state": "ready",
    "incarnation": 1700000000000,
    "uptime_s": 1.5,
    "requests": {"received": 3, "served_local": 2, "forwarded": 1, "served_for_peers": 0, "failed": 0},
    "cache": {"pages": 7, "capacity_pages": 100, "page_size": 16, "source": "events"},
    "load": LOAD,
    "dropped": {"gossip": 0, "snapshot": 0, "request": 0, "http": 4},
}
PEERS = {
    "peers": [
        {
            "peer_id": OTHER,
            "addrs": ["/ip4/192.168.1.5/tcp/4001"],
            "state": "alive",
            "rtt_s": None,
            "incarnation": 1,
            "seq": 2,
            "tree_version": 3,
            "pages": 4,
            "snapshot_age_s": 0.4,
            "load": LOAD,
            "paused_for_s": 0.0,
        }
    ]
}
CANDIDATE = {
    "peer_id": OTHER,
    "expected_cached_tokens": 32,
    "snapshot_age_s": 0.2,
    "rtt_s": 0.001,
    "wait_s": 0.0,
    "cost_s": 0.1,
}
DECISION = {
    "request_id": "req-1",
    "candidates": [CANDIDATE, {**CANDIDATE, "peer_id": ME, "snapshot_age_s": None, "rtt_s": None}],
    "chosen": OTHER,
    "reason": "saves 0.4 s",
    "cached_tokens": None,
    "ttft_s": 0.1,
    "duration_s": None,
    "attempts": [{"peer_id": OTHER, "outcome": "served"}],
}


def validator(name: str) -> jsonschema.Draft202012Validator:
    """The schema of that name, itself checked."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(("name", "example"), [("status", STATUS), ("peers", PEERS), ("decision", DECISION)])
def test_schema_holds_every_field_of_the_contract(name: str, example: dict[str, Any]) -> None:
    """The example fits; without any one of its fields it does not."""
    schema = validator(name)
    schema.validate(example)
    for path in paths(example):
        broken = copy.deepcopy(example)
        inner: Any = broken
        for step in path[:-1]:
            inner = inner[step]
        del inner[path[-1]]
        assert not schema.is_valid(broken), path


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the object keys in a JSON value are."""
    if isinstance(value, dict):
        own = [(*at, key) for key in value]
        return own + [path for key in value for path in paths(value[key], (*at, key))]
    if isinstance(value, list):
        return [path for i, item in enumerate(value) for path in paths(item, (*at, i))]
    return []


async def test_status_and_peers_are_what_the_node_says(face: Face) -> None:
    face.node.status_json, face.node.peers_json = STATUS, PEERS
    assert (await face.get("/peerinfer/v1/status")).json() == STATUS
    assert (await face.get("/peerinfer/v1/peers")).json() == PEERS


async def test_decision_is_found_by_its_request(face: Face) -> None:
    face.node.decisions["req-1"] = DECISION
    assert (await face.get("/peerinfer/v1/requests/req-1")).json() == DECISION


async def test_unknown_request_is_not_found(face: Face) -> None:
    response = await face.get("/peerinfer/v1/requests/req-0")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "request_not_found"
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_health_and_readiness_differ(face: Face) -> None:
    """A node that starts is healthy already, and ready once a completion would be answered."""
    face.node.ready = False
    assert (await face.get("/healthz")).status_code == 200
    response = await face.get("/readyz")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    face.node.ready = True
    assert (await face.get("/readyz")).status_code == 200


async def test_openai_client_lists_models(face: Face) -> None:
    models = await face.openai(lambda c: c.models.list().data)
    assert [(m.id, m.object, m.owned_by) for m in models] == [(MODEL, "model", "peerinfer")]


async def test_openai_client_retrieves_a_model_with_a_slash_in_its_name(face: Face) -> None:
    assert (await face.openai(lambda c: c.models.retrieve(MODEL))).id == MODEL
    response = await face.get("/v1/models/other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
