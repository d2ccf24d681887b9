"""A node's HTTP face without a node: what it answers is scripted, what it was asked is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

STATUS = {
    "peer_id": "12D3KooWMeMeMe",
    "model": "tiny",
    "fingerprint": "00",
    "network": {"links": 3, "relayed_links": 1, "unreached": [], "relays": []},
    "engine": "simulated",
    "engine_state": "ready",
    "incarnation": 1,
    "uptime_s": 3725.0,
    "requests": {
        "received": 5,
        "served_local": 2,
        "forwarded": 2,
        "served_for_peers": 7,
        "refused": 0,
        "failed": 1,
    },
    "cache": {"pages": 12, "capacity_pages": 4096, "page_size": 16, "source": "events"},
    "load": {
        "running": 1,
        "queued": 0,
        "queued_prefill_tokens": 0,
        "prefill_tokens_per_s": 250.5,
        "decode_tokens_per_s": 41.0,
    },
    "dropped": {"gossip": 0, "snapshot": 0, "request": 3, "http": 0},
}
PEERS = {
    "peers": [
        {
            "peer_id": "12D3KooWaaaBBBBBB",
            "addrs": ["/ip4/192.0.2.7/tcp/4001"],
            "link": None,
            "state": "suspect",
            "rtt_s": 0.0021,
            "incarnation": 1,
            "seq": 4,
            "tree_version": 2,
            "pages": 120,
            "snapshot_age_s": 7.5,
            "load": STATUS["load"],
            "paused_for_s": 0.0,
        },
        {
            "peer_id": "12D3KooWaaaCCCCCC",
            "addrs": [],
            "link": "relayed",
            "state": "alive",
            "rtt_s": None,
            "snapshot_age_s": 0.2,
        },
    ],
    "foreign": [{"peer_id": "12D3KooWaaaDDDDDD", "addrs": [], "differs": ["chat_template"]}],
}
CHAT_HEADERS = {
    "x-peerinfer-request-id": "req-1",
    "x-peerinfer-served-by": "12D3KooWaaaBBBBBB",
    "x-peerinfer-route": "forwarded",
    "x-peerinfer-expected-cached-tokens": "32",
}


def event(content: str) -> dict[str, Any]:
    """A stream chunk with text."""
    return {"choices": [{"index": 0, "delta": {"content": content}}]}


USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 40,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 32},
    },
}


class ScriptedNode:
    """Answers GETs from `json`, and chats with `events` after `headers`; keeps the bodies it was sent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.json: dict[str, object] = {
            "/v1/models": {"data": [{"id": "tiny"}]},
            "/peerinfer/v1/status": STATUS,
            "/peerinfer/v1/peers": PEERS,
        }
        self.status = 200
        self.headers: dict[str, str] = dict(CHAT_HEADERS)
        self.events: list[object] = [event("Hello"), event(" wörld"), USAGE, "[DONE]"]
        self.bodies: list[dict[str, Any]] = []
        self.request_headers: list[dict[str, str]] = []


@pytest.fixture
def scripted_node() -> Iterator[ScriptedNode]:
    """A scripted node that listens on loopback."""

    class Exchange(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            node.request_headers.append({name.lower(): value for name, value in self.headers.items()})
            found = node.json.get(self.path)
            self._answer(200 if found else 404, json.dumps(found or {}), "application/json")

        def do_POST(self) -> None:
            node.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            node.request_headers.append({name.lower(): value for name, value in self.headers.items()})
            if node.status != 200:
                body = {"error": {"message": "prompt is too long", "type": "invalid_request_error"}}
                self._answer(node.status, json.dumps(body), "application/json")
                return
            lines = [
                f"data: {item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)}\n\n"
                for item in node.events
            ]
            self._answer(200, "".join(lines), "text/event-stream", node.headers)

        def _answer(self, status: int, body: str, kind: str, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"content-type": kind, **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_args: object) -> None:
            """Say nothing on the test's stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Exchange) as server:
        node = ScriptedNode(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield node
        server.shutdown()
        thread.join()
