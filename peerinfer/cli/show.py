"""`ask`, `status` and `peers`: what a node answers and knows, for people and (`--json`) for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from peerinfer.cli.client import Answer, NodeApi, api_option, open_client
from peerinfer.cli.errors import CommandError, run_async
from peerinfer.cli.output import plain_console, table_console

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")


@click.command()
@click.argument("text")
@click.option("--max-tokens", type=click.IntRange(min=1), help="End the answer after so many tokens.")
@api_option
@json_option
def ask(text: str, max_tokens: int | None, api: NodeApi, as_json: bool) -> None:
    """Ask a node TEXT, and see where the answer came from.

    The answer streams to stdout; a line on stderr then says who served it and what was cached. With `-`
    as TEXT the question is read from stdin.
    """
    if text == "-":
        text = sys.stdin.read()
    if not text.strip():
        raise CommandError("the question is empty: give it as TEXT, or as - and on stdin")
    shown = _Shown(quiet=as_json)
    try:
        answer = run_async(_ask, text, max_tokens, api, shown.write)
    finally:
        shown.end_line()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(answer), ensure_ascii=False))
        return
    plain_console(stderr=True).print(provenance(answer), style="dim")


async def _ask(text: str, max_tokens: int | None, api: NodeApi, on_text: Callable[[str], None]) -> Answer:
    async with open_client(api) as client:
        answer = await client.chat(
            [{"role": "user", "content": text}],
            model=await client.model(),
            max_tokens=max_tokens,
            on_text=on_text,
        )
        answer.servers = await client.servers(answer)
        return answer


class _Shown:
    """The text that has gone to stdout so far, and whether a line of it is open."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._open = False

    def write(self, text: str) -> None:
        if not self._quiet:
            click.echo(text, nl=False)
            sys.stdout.flush()
            self._open = not text.endswith("\n")

    def end_line(self) -> None:
        if self._open:
            click.echo()


def provenance(answer: Answer) -> str:
    """Where an answer came from, in a line."""
    onward = "".join(f", then by {short(peer)}" for peer in answer.servers[1:])
    return " · ".join(
        (
            f"served by {short(answer.served_by)}, {answer.route or 'route unknown'}{onward}",
            f"cached {_number(answer.cached_tokens)} of {_number(answer.prompt_tokens)} tokens"
            f" (expected {_number(answer.expected_cached_tokens)})",
            "no text" if answer.ttft_s is None else f"first text after {seconds(answer.ttft_s)}",
        )
    )


@click.command()
@api_option
@json_option
def status(api: NodeApi, as_json: bool) -> None:
    """How a node is doing."""
    if as_json:
        click.echo(run_async(_get_text, api, "/peerinfer/v1/status"))
        return
    table_console().print(status_table(run_async(_get, api, "/peerinfer/v1/status")))


@click.command()
@api_option
@json_option
def peers(api: NodeApi, as_json: bool) -> None:
    """The peers a node knows, and what it knows of them."""
    if as_json:
        click.echo(run_async(_get_text, api, "/peerinfer/v1/peers"))
        return
    content = run_async(_get, api, "/peerinfer/v1/peers")
    known, foreign = content.get("peers") or [], content.get("foreign") or []
    if not known and not foreign:
        click.echo("no peers yet (`peerinfer status` says whom it does not reach)")
    if known:
        table_console().print(peers_table(known))
    for peer in foreign:
        through = " (through a relay)" if peer.get("link") == "relayed" else ""
        click.echo(f"{short(peer.get('peer_id'))}{through} {_foreign(peer.get('differs') or ())}")


def _foreign(differs: Sequence[str]) -> str:
    """What is to be said of a peer that shares the network and not the cache."""
    if "role" in differs:
        return "introduces peers to each other and serves no requests"
    return f"serves something else: {', '.join(differs) or 'its fingerprint'} differs"


async def _get(api: NodeApi, path: str) -> dict[str, Any]:
    async with open_client(api) as client:
        return await client.get(path)


async def _get_text(api: NodeApi, path: str) -> str:
    async with open_client(api) as client:
        return await client.get_text(path)


def status_table(status: Mapping[str, Any]) -> Table:
    """One node's status as two columns."""
    requests, cache = _map(status, "requests"), _map(status, "cache")
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("peer", str(status.get("peer_id", "-")))
    table.add_row("model", str(status.get("model", "-")))
    table.add_row("engine", f"{status.get('engine', '-')}, {status.get('engine_state', '-')}")
    key_id = status.get("swarm_key_id")
    table.add_row("swarm", "open" if key_id is None else f"closed, key {key_id}")
    network = _map(status, "network")
    table.add_row("links", links_line(network))
    for address in network.get("unreached") or ():
        table.add_row("not joined", f"{address.get('addr', '-')}: {address.get('reason', '-')}")
    table.add_row("up for", duration(status.get("uptime_s")))
    table.add_row(
        "requests",
        f"{_number(requests.get('received'))} received: {_number(requests.get('served_local'))} served here,"
        f" {_number(requests.get('forwarded'))} forwarded, {_number(requests.get('refused'))} refused,"
        f" {_number(requests.get('failed'))} failed;"
        f" {_number(requests.get('served_for_peers'))} served for peers",
    )
    table.add_row(
        "cache",
        f"{_number(cache.get('pages'))} of {_number(cache.get('capacity_pages'))} pages"
        f" of {_number(cache.get('page_size'))} tokens",
    )
    table.add_row("load", load_line(_map(status, "load")))
    dropped = {kind: count for kind, count in _map(status, "dropped").items() if count}
    table.add_row("dropped", ", ".join(f"{count} {kind}" for kind, count in dropped.items()) or "nothing")
    return table


STATE_STYLES = {"alive": "green", "suspect": "red", "left": "dim", "paused": "yellow", "loading": "yellow"}


def peers_table(known: list[Mapping[str, Any]]) -> Table:
    """One line per peer."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("peer", "state", "link"):
        table.add_column(name, no_wrap=True)
    for name in ("round trip", "pages", "heard"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("load")
    table.add_column("address", overflow="fold")
    for peer in known:
        state = str(peer.get("state", "-"))
        heard = peer.get("snapshot_age_s")
        addrs = peer.get("addrs") or ["-"]
        table.add_row(
            short(peer.get("peer_id")),
            Text(state, style=STATE_STYLES.get(state, "")),
            str(peer.get("link") or "-"),
            seconds(peer.get("rtt_s")),
            _number(peer.get("pages")),
            "-" if heard is None else f"{seconds(heard)} ago",
            work_line(_map(peer, "load")),
            str(addrs[0]),
        )
    return table


def links_line(network: Mapping[str, Any]) -> str:
    """Whether a node is in a swarm, or alone."""
    links, relayed = network.get("links"), network.get("relayed_links")
    if links == 0:
        return "none: it serves alone"
    through = f", {relayed} of them through a relay" if relayed else ""
    return f"{_number(links)}{through}"


def load_line(load: Mapping[str, Any]) -> str:
    """The work at hand and the measured rates."""
    parts = [work_line(load)]
    if load.get("prefill_tokens_per_s"):
        parts.append(f"prefill {load['prefill_tokens_per_s']:.0f} tokens/s")
    if load.get("decode_tokens_per_s"):
        parts.append(f"decode {load['decode_tokens_per_s']:.0f} tokens/s")
    return ", ".join(parts)


def work_line(load: Mapping[str, Any]) -> str:
    """The requests at hand."""
    return f"{_number(load.get('running'))} running, {_number(load.get('queued'))} queued"


def short(peer_id: str | None) -> str:
    """The end of a peer id: all of them begin alike."""
    return "?" if not peer_id else f"…{peer_id[-6:]}"


def seconds(value: float | None) -> str:
    """A short time with three significant digits."""
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def duration(value: float | None) -> str:
    """A long time in the two largest units."""
    if value is None:
        return "-"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _map(source: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = source.get(name)
    return value if isinstance(value, Mapping) else {}
