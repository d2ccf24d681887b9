"""Situations that only real processes have."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.e2e.processes import PeerProcess, simulated, swarm, wait_until

TOKENS = 3000
ANSWER_S = TOKENS / 40
PATIENCE_S = 3.0
"""Of the client, from one byte to the next."""


def _running(node: PeerProcess) -> int:
    return int(node.json("status")["load"]["running"])


def _leave(url: str, body: dict[str, object], headers: dict[str, str]) -> bool:
    """Whether the client left before its answer was complete."""
    try:
        with httpx.stream("POST", url, json=body, headers=headers, timeout=PATIENCE_S) as answer:
            for number, _ in enumerate(answer.iter_lines()):
                if number > 20:
                    return True
    except httpx.ReadTimeout:
        return True
    return False


def test_16_a_client_that_leaves_stops_the_engine_of_another_process(tmp_path: Path) -> None:
    """The client enters at one node and the other serves, streamed and not. The answer would take more than a
    minute; what is left of it after the client has gone is printed, and is nothing against that."""
    with swarm(tmp_path, 2, args=simulated(tmp_path, "--allow-overrides")) as (entry, server):
        headers = {"x-peerinfer-target": server.peer_id}
        for stream in (True, False):
            body = {"model": "simulated", "prompt": "once", "max_tokens": TOKENS, "stream": stream}
            with ThreadPoolExecutor(1) as pool:
                client = pool.submit(_leave, f"{entry.http}/v1/completions", body, headers)
                wait_until(lambda: _running(server) == 1, within_s=ANSWER_S / 3, what="it is at work")
                assert client.result()
            took_s = wait_until(
                lambda: _running(server) == 0, within_s=ANSWER_S / 3, what="the engine stopped"
            )
            print(f"stream={stream}: the engine stopped {took_s:.2f} s after the client had left")
