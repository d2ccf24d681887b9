"""What a node says once its HTTP face answers: where it is, how to use it, and how others join.

The engine may still load and peers may still be missing then; those are told later, a line each
(event_log.py). Nothing here shows an address that nobody can dial.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
from rich.console import Console

from peerinfer.cli.output import plain_console

ADDRS_SHOWN_MAX = 4
PRIVATE = tuple(
    map(
        ipaddress.ip_network,
        (
            "127.0.0.0/8",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",
            "169.254.0.0/16",
            "::1",
            "fc00::/7",
            "fe80::/10",
        ),
    )
)
"""Networks that many have: an address in them means something within one only."""
OPEN_SWARM = (
    "this swarm has no key: whoever reaches an address can join it and sees the prompts sent its way"
    " (`peerinfer key new` makes one, --swarm-key uses it)."
)
OPEN_API = "the API has no key: whoever reaches its port can use it (--api-key-file sets one)."
BY_INVITE = (
    "INVITE is the one that this node joined by; `peerinfer invite -` reads that from stdin, and prints one"
    " with this node's own addresses."
)
LOOPBACK_ONLY = "it listens on this machine only; give --listen /ip4/0.0.0.0/tcp/0 to let others in."


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """One node that answers."""

    version: str
    peer_id: str
    addrs: Sequence[str]
    """Full multiaddrs that others can dial."""
    http: str | None
    """Base URL; None for a peer without HTTP."""
    model: str | None
    engine: str | None
    """None for a bootstrap peer."""
    engine_state: str | None = None
    closed: bool = False
    """The swarm has a key."""
    swarm_key: str | None = None
    """The key's file, as in a shell; None if there is none, or if the key came in an invite."""
    has_api_key: bool = False
    api_key_file: str | None = None
    """Where that is, as in a shell; None if it came in the environment."""
    open_api: bool = False
    """Other machines reach the HTTP face, and need no key."""


def show_ready(ready: Ready, *, as_json: bool) -> None:
    """Print it to stdout, for programs or for people."""
    if as_json:
        click.echo(ready_json(ready))
        for note in notes(ready):
            click.echo(f"Note: {note}", err=True)
    else:
        print_ready(plain_console(), ready)


def ready_json(ready: Ready) -> str:
    """The one object on stdout with `--json`."""
    return json.dumps(
        {
            "peer_id": ready.peer_id,
            "listen": list(ready.addrs),
            "http": ready.http,
            "model": ready.model,
            "engine": ready.engine,
            "version": ready.version,
        }
    )


def print_ready(console: Console, ready: Ready) -> None:
    """The block that people see."""
    what = "bootstrap peer, no engine" if ready.engine is None else f"{ready.model}, {ready.engine} engine"
    state = "" if ready.engine_state in (None, "ready") else f" ({ready.engine_state})"
    console.print(f"peerinfer {ready.version} is up: {what}{state}", style="bold")
    if ready.http is not None and ready.engine is not None:
        console.print(f"\n  OpenAI API   {ready.http}/v1")
        for line in curl_lines(ready.http, ready.model or "", key=_key_in_shell(ready)):
            console.print(f"               {line}", style="dim")
    elif ready.http is not None:
        api_key = "" if ready.api_key_file is None else f" --api-key-file {ready.api_key_file}"
        console.print(f"\n  To watch it  peerinfer status --api {ready.http}{api_key}")
    console.print()
    for label, command in joining(ready):
        console.print(f"  {label:<11}  {command}")
    if not ready.addrs:
        console.print("  Nobody can join it yet: it has no address that others can dial.")
    console.print()
    for note in notes(ready):
        console.print(f"  Note: {note}", style="dim")
    console.print("  Ctrl-C stops it.", style="dim")


def joining(ready: Ready) -> list[tuple[str, str]]:
    """The command lines by which others join, none of which wants what its reader has not."""
    addrs = preferred(ready.addrs)[:ADDRS_SHOWN_MAX]
    key = "" if ready.swarm_key is None else f" --swarm-key {ready.swarm_key}"
    joins = [f"peerinfer join {addr}{key}" for addr in addrs]
    if ready.closed and ready.swarm_key is None:
        joins = ["peerinfer join INVITE"]
    lines = list(zip(["To join it", *["or"] * ADDRS_SHOWN_MAX], joins, strict=False))
    if not ready.closed or not addrs:
        return lines
    api_key = "" if ready.api_key_file is None else f" --api-key-file {ready.api_key_file}"
    source = " ".join(addrs) if ready.http is None else f"--api {ready.http}{api_key}"
    return [*lines, ("or by", f"peerinfer invite{key or ' -'} {source}")]


def _key_in_shell(ready: Ready) -> str | None:
    """The API key as a shell finds it; None if there is none."""
    if not ready.has_api_key:
        return None
    return "$PEERINFER_API_KEY" if ready.api_key_file is None else f"$(head -1 {ready.api_key_file})"


def curl_lines(http: str, model: str, *, key: str | None) -> list[str]:
    """A request to copy into a shell."""
    body: Mapping[str, object] = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    return [
        f"curl {http}/v1/chat/completions -H 'content-type: application/json' \\",
        *([] if key is None else [f'  -H "authorization: Bearer {key}" \\']),
        f"  -d {shlex.quote(json.dumps(body))}",
    ]


def notes(ready: Ready) -> list[str]:
    """What this node's openness means."""
    found = []
    if ready.addrs and all(is_loopback(addr) for addr in ready.addrs):
        found.append(LOOPBACK_ONLY)
    elif not ready.closed:
        found.append(OPEN_SWARM)
    if ready.closed and ready.swarm_key is None:
        found.append(BY_INVITE)
    if ready.open_api:
        found.append(OPEN_API)
    return found


def preferred(addrs: Sequence[str]) -> list[str]:
    """Addresses that other machines can dial; the loopback ones only where there is nothing else."""
    outside = [addr for addr in addrs if not is_loopback(addr)]
    return outside or list(addrs)


def is_loopback(addr: str) -> bool:
    """Whether a multiaddr leads to this machine only."""
    parts = addr.split("/")
    return len(parts) > 2 and _is_loopback_host(parts[2])


def is_private(addr: str) -> bool:
    """Whether a multiaddr leads somewhere only from within one network."""
    parts = addr.split("/")
    try:
        ip = ipaddress.ip_address(parts[2]) if len(parts) > 2 else None
    except ValueError:
        return False
    return ip is not None and any(ip in network for network in PRIVATE)


def _is_loopback_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
