"""Records a real SGLang's cache events for test_kv_event_codec.py, live and replayed.

Usage: python -m tests.engine.record_kv_events URL KV_PORT FORMAT [FILE]; the server runs with a pool of 4,096
tokens, pages of 16, `--kv-events-config` with topic kv, this format, and replay on the next port.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import httpx
import zmq

FILE = Path(__file__).parent / "recordings" / "sglang_kv_events.json"
END = b"\xff" * 8


def drive(url: str) -> None:
    """Prompts that share, generated tokens, a salt, an extra key, an eviction, a flush."""
    rng = random.Random(1)
    common = [rng.randrange(1000, 40000) for _ in range(48)]
    with httpx.Client(base_url=url, timeout=120) as client:

        def ask(tokens: list[int], count: int = 1, **more: object) -> None:
            body = {"model": "smollm2", "prompt": tokens, "max_tokens": count, "temperature": 0}
            client.post("/v1/completions", json=body | {"ignore_eos": True} | more).raise_for_status()

        ask([*common, *[5] * 10])
        ask([*common, *[6] * 40], 40)
        ask([*common, *[7] * 20], cache_salt="salt")
        ask([*common, *[7] * 20], extra_key="extra")
        ask([*common, *[7] * 20])
        for _ in range(7):
            ask([rng.randrange(1000, 40000) for _ in range(640)])
        client.post("/flush_cache").raise_for_status()
        ask([*common, *[5] * 10])


def replayed(context: zmq.Context[zmq.Socket[bytes]], port: int) -> list[list[bytes]]:
    socket = context.socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    socket.send_multipart([b"", bytes(8)])
    answers = []
    while socket.poll(10_000):
        answers.append(socket.recv_multipart())
        if answers[-1][-2] == END:
            return answers
    raise SystemExit("no replay")


def main(url: str, port: int, kind: str, file: Path) -> None:
    context = zmq.Context()
    live = context.socket(zmq.SUB)
    live.subscribe(b"")
    live.connect(f"tcp://127.0.0.1:{port}")
    live.poll(1000)
    drive(url)
    frames = []
    while live.poll(2000):
        frames.append(live.recv_multipart())
    recorded: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    recorded[kind] = {
        "live": [[part.hex() for part in message] for message in frames],
        "replay": [[part.hex() for part in message] for message in replayed(context, port + 1)],
    }
    file.write_text(json.dumps(recorded, indent=0) + "\n")
    context.destroy(linger=0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]) if len(sys.argv) > 4 else FILE)
