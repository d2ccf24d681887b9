"""`peerinfer bootstrap`: a peer without an engine, which others join through (node/introducer.py).

It takes part in discovery, passes connections on between nodes that cannot reach each other, and does nothing
else. How many it has to do with is in its log, and with `--http` it tells whoever asks.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import click
import platformdirs
import trio

from peerinfer import __version__
from peerinfer.cli.data_dir import lock
from peerinfer.cli.errors import CommandError, run_async
from peerinfer.cli.event_log import events_on_stderr
from peerinfer.cli.node_options import NodeOptions, addrs_argument, node_options
from peerinfer.cli.ready import Ready, show_ready
from peerinfer.cli.serve import check_addresses, starting
from peerinfer.cli.stopping import until_stopped
from peerinfer.node.introducer import Introducer

if TYPE_CHECKING:  # libp2p takes a second to import, and `--help` needs none of it
    from peerinfer.overlay.libp2p import LibP2POverlay

FRAME_BYTES_MAX = 64 * 1024
"""Longer frames are not read: it has no use for requests."""


@click.command()
@addrs_argument
@node_options(engine=False)
def bootstrap(options: NodeOptions) -> None:
    """Start a peer without an engine, for others to join through.

    It helps nodes to find and to reach each other, and serves no requests. ADDR… are peers that it joins
    itself. With --http, `peerinfer status` and `peers` say how it is doing. Ctrl-C stops it.
    """
    check_addresses(options.config.overlay)
    default = Path(platformdirs.user_data_dir("peerinfer")) / "bootstrap"
    listening = _listener(options)
    with lock(options.data_dir or default) as data_dir, events_on_stderr():
        run_async(_run, options, data_dir, listening)


def _listener(options: NodeOptions) -> socket.socket | None:
    """Where it tells how it is doing; None if nobody asked for that. Raises `CommandError`."""
    from peerinfer.api.server import ListenError, open_listener

    if not options.serves_http:
        return None
    try:
        return open_listener(options.config.http)
    except ListenError as error:
        raise CommandError(str(error)) from None


async def _run(options: NodeOptions, data_dir: Path, listening: socket.socket | None) -> None:
    from peerinfer.overlay.libp2p import LibP2POverlay

    async with until_stopped(stdin=options.until_stdin_closes) as stopping:
        with starting():
            overlay = LibP2POverlay(
                data_dir=data_dir,
                config=replace(options.config.overlay, relay=True),
                topic=None,
                frame_bytes_max=FRAME_BYTES_MAX,
                swarm_key=options.swarm_key,
            )
        async with _running(overlay, options, listening) as http:
            key = options.config.http.api_key
            ready = Ready(
                version=__version__,
                peer_id=overlay.peer_id,
                addrs=overlay.addrs(),
                http=http,
                model=None,
                engine=None,
                closed=options.swarm_key is not None,
                swarm_key=options.swarm_key_shown,
                has_api_key=bool(key),
                api_key_file=options.api_key_file_shown,
                open_api=listening is not None
                and not (key or ip_address(listening.getsockname()[0]).is_loopback),
            )
            show_ready(ready, as_json=options.as_json)
            await stopping.until_told()


@asynccontextmanager
async def _running(
    overlay: LibP2POverlay, options: NodeOptions, listening: socket.socket | None
) -> AsyncIterator[str | None]:
    """A peer that runs, and its HTTP face's base URL if it has one."""
    from peerinfer.api.server import serve_telling

    introducer = Introducer(overlay, swarm_key=options.swarm_key)
    with starting():
        async with overlay.run(introducer), trio.open_nursery() as nursery:
            nursery.start_soon(introducer.run)
            http: str | None = None
            if listening is not None:

                async def face(*, task_status: trio.TaskStatus[str]) -> None:
                    await serve_telling(
                        introducer, options.config.http, listening=listening, task_status=task_status
                    )

                http = await nursery.start(face)
            yield http
            nursery.cancel_scope.cancel()
