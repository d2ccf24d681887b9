"""`peerinfer bootstrap`: a peer without an engine, which others join through.

It takes part in discovery, passes connections on between nodes that cannot reach each other, and does nothing
else: no topic, no trees, and every request is refused. A node that asks what it serves is told its role, so
that it shows up as a bootstrap peer and not as a silent one.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import platformdirs

from peerinfer import __version__
from peerinfer.cli.data_dir import lock
from peerinfer.cli.errors import run_async
from peerinfer.cli.event_log import events_on_stderr
from peerinfer.cli.node_options import NodeOptions, addrs_argument, node_options
from peerinfer.cli.ready import Ready, show_ready
from peerinfer.cli.serve import check_addresses, starting
from peerinfer.cli.stopping import until_stopped
from peerinfer.core.fingerprint import ROLE_FIELD, Hello, encode_hello
from peerinfer.core.frames import Ask, Refuse, Request
from peerinfer.core.types import PeerId

if TYPE_CHECKING:
    from peerinfer.node.ports import Call

ROLE = {ROLE_FIELD: "bootstrap"}
FRAME_BYTES_MAX = 64 * 1024
"""Longer frames are not read: it has no use for requests."""


@click.command()
@addrs_argument
@node_options(engine=False)
def bootstrap(options: NodeOptions) -> None:
    """Start a peer without an engine, for others to join through.

    It helps nodes to find and to reach each other, serves no requests and has no HTTP face. ADDR… are peers
    that it joins itself. Ctrl-C stops it.
    """
    check_addresses(options.config.overlay)
    default = Path(platformdirs.user_data_dir("peerinfer")) / "bootstrap"
    with lock(options.data_dir or default) as data_dir, events_on_stderr():
        run_async(_run, options, data_dir)


async def _run(options: NodeOptions, data_dir: Path) -> None:
    from peerinfer.overlay.libp2p import LibP2POverlay

    async with until_stopped(stdin=options.until_stdin_closes) as stopping, AsyncExitStack() as stack:
        with starting():
            overlay = LibP2POverlay(
                data_dir=data_dir,
                config=replace(options.config.overlay, relay=True),
                topic=None,
                frame_bytes_max=FRAME_BYTES_MAX,
                swarm_key=options.swarm_key,
            )
            await stack.enter_async_context(overlay.run(Introducer()))
        ready = Ready(
            version=__version__,
            peer_id=overlay.peer_id,
            addrs=overlay.addrs(),
            http=None,
            model=None,
            engine=None,
            closed=options.swarm_key is not None,
            swarm_key=options.swarm_key_shown,
        )
        show_ready(ready, as_json=options.as_json)
        await stopping.until_told()


class Introducer:
    """What an overlay reports to on a peer that only introduces others: an `OverlaySink`."""

    def gossip(self, peer: PeerId, payload: bytes) -> None:
        """There is no topic here."""

    def link_up(self, peer: PeerId) -> None:
        """The overlay has logged it."""

    def link_down(self, peer: PeerId) -> None:
        """The overlay has logged it."""

    async def serve_call(self, call: Call, opening: Request | Ask) -> None:
        """Refuse at once; the asking node tries the next target."""
        await call.send(Refuse(id=opening.id, code="not_ready", message="a bootstrap peer has no engine"))

    def hello(self) -> bytes:
        """A role in place of a fingerprint's fields, which no node shares."""
        return encode_hello(Hello(fields=ROLE, snapshot=b""))

    def dropped(self, kind: str, peer: PeerId | None, reason: str) -> None:
        """Nobody asks a bootstrap peer for its counters."""
