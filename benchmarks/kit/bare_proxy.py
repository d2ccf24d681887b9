"""A proxy that does nothing else: the node's own HTTP on both sides, and bytes in between.

`python -m benchmarks.kit.bare_proxy --port N --to URL`. What a node costs beyond it is the node's own work.
"""

from __future__ import annotations

import argparse
from functools import partial

import trio
from starlette.types import Receive, Scope, Send

from peerinfer.api.body import read_body
from peerinfer.api.connection import Waiting, serve_connection
from peerinfer.engine.http_client import HttpClient


async def relay(client: HttpClient, to: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Pass a request on, and its answer back as it comes."""
    body = await read_body(scope["headers"], receive, bytes_max=1 << 24)
    async with client.request("POST", to + scope["path"], body) as response:
        kind = response.headers.get(b"content-type", b"application/json")
        await send(
            {"type": "http.response.start", "status": response.status, "headers": [(b"content-type", kind)]}
        )
        while data := await response.receive():
            await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def serve(*, port: int, to: str) -> None:
    """Relay until the process is ended."""
    app = partial(relay, HttpClient(), to)
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    print("ready", flush=True)

    async def serve_client(stream: trio.SocketStream) -> None:
        await serve_connection(app, stream, lambda: None, Waiting())

    await trio.serve_listeners(serve_client, listeners)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--to", required=True)
    options = parser.parse_args()
    trio.run(partial(serve, port=options.port, to=options.to))


if __name__ == "__main__":
    main()
