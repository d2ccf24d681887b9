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

INTRODUCES = "introduces peers to each other and serves no requests"

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")


@click.command()
@click.argument("text")
@click.option("--max-tokens", type=click.IntRange(min=1), help="End the answer after so many tokens.")
@api_option
@json_option
def ask(text: str, max_tokens: int | None, api: NodeApi, as_json: bool) -> None:
    """Ask a node TEXT, and see where the answer came from.

    The answer streams to stdout; a line on stderr then says who served it, what was cached, and
    the request's id for `peerinfer why`. With `-` as TEXT the question is read from stdin.
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
    request = () if answer.request_id is None else (answer.request_id,)
    return " · ".join(
        (
            f"served by {short(answer.served_by)}, {answer.route or 'route unknown'}{onward}",
            f"cached {_number(answer.cached_tokens)} of {_number(answer.prompt_tokens)} tokens"
            f" (expected {_number(answer.expected_cached_tokens)})",
            "no text" if answer.ttft_s is None else f"first text after {seconds(answer.ttft_s)}",
            *request,
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
    links = content.get("links") or []
    if not known and not foreign and not links:
        click.echo("no peers yet (`peerinfer status` says whom it does not reach)")
    if known:
        table_console().print(peers_table(known))
    for peer in foreign:
        through = " (through a relay)" if peer.get("link") == "relayed" else ""
        click.echo(f"{short(peer.get('peer_id'))}{through} {_foreign(peer.get('differs') or ())}")
    for peer in links:  # of a bootstrap peer, which knows no more of them
        addrs = peer.get("addrs") or ["-"]
        click.echo(f"{short(peer.get('peer_id'))}  {peer.get('link') or '-'}  {addrs[0]}")


def _foreign(differs: Sequence[str]) -> str:
    """What is to be said of a peer that shares the network and not the cache."""
    if "role" in differs:
        return INTRODUCES
    return f"serves something else: {', '.join(differs) or 'its fingerprint'} differs"


async def _get(api: NodeApi, path: str) -> dict[str, Any]:
    async with open_client(api) as client:
        return await client.get(path)


async def _get_text(api: NodeApi, path: str) -> str:
    async with open_client(api) as client:
        return await client.get_text(path)


def status_table(status: Mapping[str, Any]) -> Table:
    """One node's status as two columns."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    serves, network = "role" not in status, _map(status, "network")
    rows = [("peer", str(status.get("peer_id", "-")))]
    if serves:
        rows.append(("model", str(status.get("model", "-"))))
        rows.append(("engine", f"{status.get('engine', '-')}, {status.get('engine_state', '-')}"))
    else:
        rows.append(("role", f"{status['role']}: {INTRODUCES}"))
    key_id = status.get("swarm_key_id")
    rows.append(("swarm", "open" if key_id is None else f"closed, key {key_id}"))
    rows.append(("links", links_line(network)))
    unreached = network.get("unreached") or ()
    rows += [("not linked", f"{each.get('addr', '-')}: {each.get('reason', '-')}") for each in unreached]
    if network.get("reservations") or not serves:
        circuits = f"{_number(network.get('circuits'))} connections that it passes on"
        rows.append(
            ("relay", f"{_number(network.get('reservations'))} peers reachable through it, {circuits}")
        )
    rows.append(("up for", duration(status.get("uptime_s"))))
    if serves:
        rows += _work_rows(status)
    dropped = {kind: count for kind, count in _map(status, "dropped").items() if count}
    rows.append(("dropped", ", ".join(f"{count} {kind}" for kind, count in dropped.items()) or "nothing"))
    for row in rows:
        table.add_row(*row)
    return table


def _work_rows(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a node serves."""
    requests, cache = _map(status, "requests"), _map(status, "cache")
    received, here, forwarded, refused, failed, for_peers = (
        _number(requests.get(kind))
        for kind in ("received", "served_local", "forwarded", "refused", "failed", "served_for_peers")
    )
    became = f"{here} served here, {forwarded} forwarded, {refused} refused, {failed} failed"
    pages, capacity = _number(cache.get("pages")), _number(cache.get("capacity_pages"))
    return [
        ("requests", f"{received} received: {became}; {for_peers} served for peers"),
        ("cache", f"{pages} of {capacity} pages of {_number(cache.get('page_size'))} tokens"),
        ("load", load_line(_map(status, "load"))),
    ]


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
    line = "none" if links == 0 else _number(links)
    if relayed:
        line += f", {relayed} of them through a relay"
    if network.get("peers") == 0:
        line += ": it serves alone" if links == 0 else "; none serves what it serves: it serves alone"
    return line


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
