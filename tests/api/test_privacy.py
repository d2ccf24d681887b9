"""Prompts and answers are nobody's business but the client's and the engine's: no log has them."""

from __future__ import annotations

import json
import logging

import pytest

from peerinfer.engine.simulated import SimulatedEngine
from tests.api.test_real_node import CHAT, alone

SECRET = "xyzzy-plugh-93"


def _bodies() -> list[bytes]:
    """Good requests and bad ones, each with the secret in a place where it might be quoted."""
    message = {"role": "user", "content": f"tell nobody: {SECRET}"}
    good = {"model": "simulated", "messages": [message], "max_tokens": 3}
    changed = [
        good,
        {**good, "stream": True},
        {**good, "messages": SECRET},
        {**good, "messages": [{"role": SECRET, "content": []}]},
        {**good, "messages": [{"role": "user", "content": {"text": SECRET}}]},
        {**good, "temperature": SECRET},
        {**good, "stop": [SECRET, 1]},
        {**good, "messages": [{**message, "content": SECRET * 20_000}]},
        {**good, "model": SECRET},
        {**good, SECRET: 1},
    ]
    return [json.dumps(each).encode() for each in changed] + [f'{{"messages": "{SECRET}'.encode()]


async def test_no_log_at_any_level_shows_a_prompt(caplog: pytest.LogCaptureFixture) -> None:
    """Goal: neither ours nor a library's. Method: everything from DEBUG on, requests served and refused."""
    caplog.set_level(logging.DEBUG)
    for name in ("peerinfer",):
        caplog.set_level(logging.DEBUG, name)
    engine = SimulatedEngine(prefill_tokens_per_s=1e6, decode_tokens_per_s=1e6, overhead_s=0)
    statuses = []
    async with alone(engine) as client:
        for body in _bodies():
            headers = {"content-type": "application/json"}
            statuses.append((await client.post(CHAT, content=body, headers=headers)).status_code)
        decision = (await client.get("/peerinfer/v1/status")).text
    assert statuses[:2] == [200, 200]
    assert 400 in statuses
    assert caplog.records
    assert SECRET not in caplog.text
    assert SECRET not in decision
