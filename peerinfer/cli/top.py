"""`peerinfer top`: how a node and its peers are doing, again and again until it is stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
import trio
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from peerinfer.cli.client import NodeApi, NodeClient, NodeError, api_option, open_client
from peerinfer.cli.errors import run_async
from peerinfer.cli.output import table_console
from peerinfer.cli.show import json_option, peers_table, status_table

INTERVAL_S = 1.0

View = Mapping[str, Any]
"""What one look found: the node's `status` and `peers`, or the `error` in their place."""


@click.command()
@api_option
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="End after so many looks.")
@json_option
def top(api: NodeApi, interval: float, times: int | None, as_json: bool) -> None:
    """Watch a node and the peers it knows. Ctrl-C ends it; with --json each look is a line."""
    with showing(as_json=as_json) as show:
        run_async(_watch, api, interval, times, show)


@contextmanager
def showing(*, as_json: bool) -> Iterator[Callable[[View], None]]:
    """How views are shown: in place on a terminal, else one after the other."""
    console = table_console()
    if as_json:
        yield lambda view: click.echo(json.dumps(view, ensure_ascii=False))
    elif not sys.stdout.isatty():
        yield lambda view: console.print(rendered(view))
    else:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda view: live.update(rendered(view), refresh=True)


def rendered(view: View) -> RenderableType:
    """A view as tables."""
    if "error" in view:
        return Text(view["error"], style="red")
    peers = view["peers"]
    return Group(
        status_table(view["status"]), Text(), peers_table(peers) if peers else Text("no peers", style="dim")
    )


async def _watch(api: NodeApi, interval_s: float, times: int | None, show: Callable[[View], None]) -> None:
    """Look again and again; a node that does not answer at first is an error, later on it is news."""
    async with open_client(api) as client:
        show(await _look(client))
        looks = 1
        while times is None or looks < times:
            await trio.sleep(interval_s)
            try:
                view = await _look(client)
            except NodeError as error:
                view = {"error": error.format_message()}
            show(view)
            looks += 1


async def _look(client: NodeClient) -> View:
    status = await client.get("/peerinfer/v1/status")
    peers = await client.get("/peerinfer/v1/peers")
    return {"status": status, "peers": peers.get("peers") or peers.get("links") or []}
