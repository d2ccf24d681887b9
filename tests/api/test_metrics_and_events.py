"""`/metrics` and `/peerinfer/v1/events` of a real node without peers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import trio
from prometheus_client.parser import text_string_to_metric_families

from peerinfer.engine.simulated import SimulatedEngine
from peerinfer.node.events import LISTENERS_MAX
from tests.api.scripted import ME, Face
from tests.api.test_real_node import CHAT, alone, body
from tests.api.test_status import validator

FAST: dict[str, float] = {"prefill_tokens_per_s": 1e5, "decode_tokens_per_s": 1e4}


async def scraped(client: httpx.AsyncClient) -> dict[str, float]:
    """Each sample with its labels, as Prometheus has it."""
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        sample.name
        + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_metrics_count_what_requests_came_to() -> None:
    """Method: the same prompt twice, and a body that is none; the cache helps the second time."""
    async with alone(SimulatedEngine(**FAST)) as client:
        before = await scraped(client)
        assert before["peerinfer_engine_ready"] == 1
        assert before["peerinfer_requests_total kind=received"] == 0
        assert before["peerinfer_ttft_seconds_count"] == 0
        for _ in range(2):
            await client.post(CHAT, json=body(stream=False))
        await client.post(CHAT, content=b"{", headers={"content-type": "application/json"})
        found = await scraped(client)
    assert found["peerinfer_requests_total kind=received"] == 2
    assert found["peerinfer_requests_total kind=served_local"] == 2
    assert found["peerinfer_attempts_total outcome=served"] == 2
    assert found["peerinfer_dropped_total kind=http"] == 1
    assert found["peerinfer_peers state=alive"] == 0
    assert found["peerinfer_ttft_seconds_count"] == found["peerinfer_ttft_seconds_bucket le=+Inf"] == 2
    assert found["peerinfer_cached_tokens_total"] == found["peerinfer_expected_cached_tokens_total"] > 1000
    assert found["peerinfer_prompt_tokens_total"] > found["peerinfer_cached_tokens_total"]
    assert found["peerinfer_cache_pages"] > 0
    (info,) = [name for name in found if name.startswith("peerinfer_node_info")]
    assert f"peer_id={ME}" in info
    assert "model=simulated" in info


async def events_of(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Events as a client that knows no more than SSE reads them."""
    name = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert event["event"] == name
            yield event


async def test_a_request_is_told_when_it_has_ended() -> None:
    async with (
        alone(SimulatedEngine(**FAST)) as client,
        client.stream("GET", "/peerinfer/v1/events") as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        answer = await client.post(CHAT, json=body(stream=True))
        with trio.fail_after(10):
            event = await anext(events_of(response))
    assert event.pop("event") == "request"
    assert event["request_id"] == answer.headers["x-peerinfer-request-id"]
    assert event["duration_s"] is not None
    validator("decision").validate(event)
    validator("events").validate({"event": "request", **event})


async def test_a_listener_that_leaves_makes_room(face: Face) -> None:
    """Method: as many as may listen, and one more; then one leaves."""
    async with face.http() as client:
        streams = [client.stream("GET", "/peerinfer/v1/events") for _ in range(LISTENERS_MAX)]
        for stream in streams:
            assert (await stream.__aenter__()).status_code == 200
        refused = await client.get("/peerinfer/v1/events")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_listeners")
        for stream in streams:
            await stream.__aexit__(None, None, None)
        with trio.fail_after(10):
            while True:
                async with client.stream("GET", "/peerinfer/v1/events") as response:
                    if response.status_code == 200:
                        return
                await trio.sleep(0.05)
