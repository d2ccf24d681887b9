"""`serve` and `join`: run one node until it is stopped.

A node that is stopped by a signal ends with status 0: that is what was asked for.
"""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peerinfer import __version__
from peerinfer.cli.data_dir import default_data_dir, lock
from peerinfer.cli.errors import CommandError, leaves_of, run_async
from peerinfer.cli.event_log import events_on_stderr
from peerinfer.cli.model import find_model
from peerinfer.cli.node_options import NodeCommand, NodeOptions, addrs_argument, node_options
from peerinfer.cli.ready import Ready, show_ready
from peerinfer.cli.stopping import until_stopped
from peerinfer.config import Config, EngineConfig, OverlayConfig
from peerinfer.node.ports import EngineError

if TYPE_CHECKING:  # libp2p takes a second to import, and `--help` needs none of it
    from peerinfer.app import Peer
    from peerinfer.engine.decide import Decision

log = logging.getLogger("peerinfer.cli")


@click.command(cls=NodeCommand)
@node_options(engine=True)
def serve(options: NodeOptions) -> None:
    """Start a node: the first of a swarm, or one that others are told of later.

    Once its HTTP face answers it prints how to use it, and the `peerinfer join …` line for other machines.
    Ctrl-C stops it. Flags behind -- are for the SGLang that it starts.
    """
    run_node(options)


@click.command(cls=NodeCommand)
@addrs_argument
@node_options(engine=True)
def join(options: NodeOptions) -> None:
    """Start a node and join the swarm of the peers at ADDR…, or of an INVITE.

    An invite is what `peerinfer invite` prints; `-` reads it from stdin, which keeps it out of `ps`.
    One peer is enough: the others are found through it. A peer that does not answer is tried for ever, and
    the node serves alone meanwhile. Ctrl-C stops it.
    """
    if not options.config.overlay.join:
        raise CommandError(
            "whom to join? Give the address that `peerinfer serve` printed on another machine, or an invite"
        )
    run_node(options)


def run_node(options: NodeOptions) -> None:
    """Run a node with an engine until it is stopped. Raises `CommandError`."""
    from peerinfer.api.server import ListenError, open_listener

    check_addresses(options.config.overlay)
    decision = find_engine(options.config.engine)
    config = replace(options.config, engine=decision.config)
    try:
        listening = open_listener(config.http)
    except ListenError as error:
        raise CommandError(str(error)) from None
    default = default_data_dir(listening.getsockname()[1])
    with listening, lock(options.data_dir or default) as data_dir, events_on_stderr():
        why = decision.why if options.config.engine.kind == "auto" else None
        run_async(_run, options, config, why, data_dir, listening)


def check_addresses(overlay: OverlayConfig) -> None:
    """Let addresses and lists of peers pass that the overlay will take, those of a config file too.

    Raises `CommandError`.
    """
    from peerinfer.overlay.addresses import (
        parse_announced_address,
        parse_listen_address,
        parse_peer_address,
        parse_peer_id,
    )

    try:
        for addr in overlay.listen:
            parse_listen_address(addr)
        for addr in overlay.announce:
            parse_announced_address(addr)
        for addr in overlay.join:
            parse_peer_address(addr)
    except ValueError as error:
        raise CommandError(str(error)) from None
    named: dict[str, set[str]] = {}
    for option, peers in (("--allow-peer", overlay.allow_peers), ("--deny-peer", overlay.deny_peers)):
        try:
            named[option] = set(map(parse_peer_id, peers))
        except ValueError as error:
            raise CommandError(f"{option}: {error}") from None
    for peer in sorted(named["--allow-peer"] & named["--deny-peer"]):
        raise CommandError(f"peer {peer} is both allowed and denied: take it out of one of the two lists")


def find_engine(engine: EngineConfig) -> Decision:
    """The engine with its model. Raises `CommandError`."""
    from peerinfer.engine.decide import decide_engine

    try:
        decision = decide_engine(engine)
    except EngineError as error:
        raise CommandError(str(error)) from None
    if decision.config.kind != "embedded":
        return decision
    model = str(find_model(decision.config.model or None))
    return replace(decision, config=replace(decision.config, model=model))


async def _run(
    options: NodeOptions, config: Config, why: str | None, data_dir: Path, listening: socket.socket
) -> None:
    async with (
        until_stopped(stdin=options.until_stdin_closes) as stopping,
        _peer(options, config, data_dir, listening) as peer,
    ):
        stopping.drain = peer.node.drain
        if why is not None:
            log.info("engine=%s because %s", config.engine.kind, why)
        status = peer.node.status()
        ready = Ready(
            version=__version__,
            peer_id=peer.node.peer_id,
            addrs=peer.addrs,
            http=peer.http_url,
            model=peer.node.info.model,
            engine=peer.node.info.kind,
            engine_state=str(status["engine_state"]),
            closed=options.swarm_key is not None,
            swarm_key=options.swarm_key_shown,
            has_api_key=bool(config.http.api_key),
            api_key_file=options.api_key_file_shown,
            open_api=not (config.http.api_key or ip_address(listening.getsockname()[0]).is_loopback),
        )
        show_ready(ready, as_json=options.as_json)
        gc.collect()
        gc.freeze()  # 140,000 objects that stay: each full collection went through them, for 70 ms (measured)
        await stopping.until_told()


@asynccontextmanager
async def _peer(
    options: NodeOptions, config: Config, data_dir: Path, listening: socket.socket
) -> AsyncIterator[Peer]:
    """A peer that runs; what keeps it from starting is a `CommandError`."""
    from peerinfer.app import run_peer

    async with AsyncExitStack() as stack:
        with starting():
            peer = await stack.enter_async_context(
                run_peer(config, data_dir=data_dir, listening=listening, swarm_key=options.swarm_key)
            )
        yield peer


@contextmanager
def starting() -> Iterator[None]:
    """What may keep a node from starting becomes a `CommandError` that says so."""
    from peerinfer.overlay.addresses import AddressInUseError
    from peerinfer.overlay.identity import IdentityError

    try:
        yield
    except Exception as error:
        for leaf in leaves_of(error):
            if isinstance(leaf, AddressInUseError):
                raise CommandError(f"{leaf.strerror or leaf}; choose another with --listen") from None
            if isinstance(leaf, EngineError | IdentityError):
                raise CommandError(str(leaf)) from None
        raise
