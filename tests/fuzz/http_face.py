"""The HTTP face as a target of the fuzzing: whatever comes on a connection, it answers HTTP or closes it.

The real connection, guard and routes over a node that is scripted; a socket pair in place of the network.
"""

from __future__ import annotations

import socket

import trio

from peerinfer.api.app import build_app
from peerinfer.api.connection import Waiting, serve_connection
from peerinfer.api.security import HostPolicy
from peerinfer.config import HttpConfig
from tests.api.scripted import ScriptedNode
from tests.api.test_status import PEERS, STATUS
from tests.fuzz.log_bugs import bugs_logged

ENOUGH_S = 60.0
"""A connection that is still open after this hangs, however busy the machine is."""
_BODY = b'{"model":"org/tiny","stream":true,"messages":[{"role":"user","content":"Hi"}]}'
_HEADERS = b"host: localhost\r\nauthorization: Bearer s3cret\r\n"
SEEDS = (
    b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\n" + _HEADERS + b"\r\nGET /metrics HTTP/1.0\r\n" + _HEADERS + b"\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\n" + _HEADERS + b"content-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY),
    b"POST /v1/chat/completions HTTP/1.1\r\n" + _HEADERS + b"content-type: application/json\r\n"
    b"transfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(_BODY), _BODY),
    b"GET / HTTP/1.1\r\n" + _HEADERS + b"upgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    b"HEAD /peerinfer/v1/requests/req%2f1?x=%00 HTTP/1.1\r\n" + _HEADERS + b"connection: close\r\n\r\n",
)


def run(payload: bytes) -> None:
    """One connection that sends this and no more. Raises what the face would have logged as a bug."""
    with bugs_logged("peerinfer.api"):
        trio.run(_serve, payload[:16_384])


async def _serve(payload: bytes) -> None:
    ours, theirs = socket.socketpair()
    node = ScriptedNode()
    node.status_json, node.peers_json = STATUS, PEERS
    app = build_app(
        node, HttpConfig(api_key="s3cret", body_bytes_max=10_000), HostPolicy("127.0.0.1", "127.0.0.1")
    )
    with theirs:
        theirs.sendall(payload)
        theirs.shutdown(socket.SHUT_WR)
        with trio.fail_after(ENOUGH_S):
            await serve_connection(
                app,
                trio.SocketStream(trio.socket.from_stdlib_socket(ours)),
                lambda: node.dropped_http("x"),
                Waiting(),
            )
        theirs.settimeout(1)
        said = b"".join(iter(lambda: theirs.recv(65536), b""))
    assert not said or said.startswith(b"HTTP/1.1 "), said[:100]
    if b"s3cret" not in payload:
        assert not node.incoming, "nothing reaches the node without the key"
