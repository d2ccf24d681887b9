"""`peerinfer why`: what a node knew when it chose where to serve a request, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click
from rich.table import Table

from peerinfer.cli.client import NodeApi, api_option, open_client
from peerinfer.cli.errors import run_async
from peerinfer.cli.output import plain_console, table_console
from peerinfer.cli.show import json_option, seconds, short


@click.command()
@click.argument("request_id")
@api_option
@json_option
def why(request_id: str, api: NodeApi, as_json: bool) -> None:
    """Why a request was served where it was: REQUEST_ID is its x-peerinfer-request-id.

    Ask the node that it was sent to, or the one that served it, soon after: each keeps the last ones only.
    """
    text = run_async(_get, api, request_id)
    if as_json:
        click.echo(text)
        return
    decision = json.loads(text)
    console = plain_console()
    for line in story(decision):
        console.print(printable(line))
    candidates = decision.get("candidates") or []
    if candidates:
        console.print()
        table_console().print(candidates_table(candidates, chosen=decision.get("chosen")))


async def _get(api: NodeApi, request_id: str) -> str:
    async with open_client(api) as client:
        return await client.get_text(f"/peerinfer/v1/requests/{quote(request_id, safe='')}")


def printable(line: str) -> str:
    """The line without what could steer a terminal: parts of it come from peers."""
    return "".join(each if each.isprintable() else "\ufffd" for each in line)


def story(decision: Mapping[str, Any]) -> list[str]:
    """What happened, a line for each thing that is known."""
    chosen, entry = decision.get("chosen"), decision.get("entry")
    where = "nobody" if chosen is None else short(chosen)
    if decision.get("role") == "serving":
        where += f", for {short(entry)}"
    elif chosen is not None:
        where += ", where it came in" if chosen == entry else f", forwarded by {short(entry)}"
    tried = decision.get("attempts") or []
    first = tried[0].get("peer_id") if len(tried) > 1 else chosen
    if chosen not in (None, first):
        where += f"; {short(first)} was tried first"  # the reason is of that choice
    lines = [f"served by {where}: {decision.get('reason', 'no reason is known')}"]
    lines.append(
        f"prompt of {_tokens(decision.get('prompt_tokens'))}: {decision.get('expected_cached_tokens', 0)}"
        f" expected in the cache, {_number(decision.get('cached_tokens'))} found there"
    )
    lines.append(
        f"first token after {seconds(decision.get('ttft_s'))}, {seconds(decision.get('duration_s'))} in all"
        f" (policy {decision.get('policy') or '-'})"
    )
    if len(tried) > 1:
        lines.append(f"tried: {', '.join(_pairs(tried, 'outcome'))}")
    if asked := decision.get("asked"):
        lines.append(f"asked before what they have of it, and for their wait: {', '.join(map(short, asked))}")
    if skipped := _pairs(decision.get("skipped"), "reason"):
        lines.append(f"left out: {', '.join(skipped)}")
    if decision.get("error"):
        lines.append(f"it ended with: {decision['error']}")
    return lines


def candidates_table(candidates: Sequence[Mapping[str, Any]], *, chosen: object) -> Table:
    """What was known of each target, best first, in 80 columns: what does not fit would be cut."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("candidate", no_wrap=True, vertical="bottom")
    for name in ("expected\ncached", "known\nfor", "round\ntrip", "wait", "others", "cost"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("")
    fields = ("snapshot_age_s", "rtt_s", "wait_s", "others_s", "cost_s")
    for each in candidates:
        name = short(each.get("peer_id")) + (" (here)" if each.get("self") else "")
        table.add_row(
            name,
            _number(each.get("expected_cached_tokens")),
            *(seconds(each.get(field)) for field in fields),
            "served" if each.get("peer_id") == chosen else "",
        )
    return table


def _pairs(items: Sequence[Mapping[str, Any]] | None, name: str) -> list[str]:
    return [f"{short(each.get('peer_id'))} {each.get(name)}" for each in items or []]


def _tokens(count: object) -> str:
    return "unknown length" if count is None else f"{count} tokens"


def _number(value: object) -> str:
    return "-" if value is None else str(value)
