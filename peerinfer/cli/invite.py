"""`peerinfer invite`: one string that `peerinfer join` takes, and the reading of it.

The addresses come from a running node, or are given; the key comes from its file, never from a node: no
node tells its key to anybody.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from peerinfer.cli.addresses import AddressError, checked, parse_join
from peerinfer.cli.client import NodeApi, api_option, open_client
from peerinfer.cli.errors import CommandError, run_async
from peerinfer.cli.key import read_swarm_key, swarm_key_option
from peerinfer.cli.ready import OPEN_SWARM, is_loopback, preferred
from peerinfer.core.invite import (
    ADDRESSES_MAX,
    INVITE_CHARS_MAX,
    Invite,
    InviteError,
    decode_invite,
    encode_invite,
    is_invite,
)
from peerinfer.core.swarm_key import SwarmKey


@click.command()
@click.argument("addrs", nargs=-1, metavar="[ADDR]...", callback=checked(parse_join))
@swarm_key_option
@api_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def invite(addrs: tuple[str, ...], swarm_key: Path | None, api: NodeApi, as_json: bool) -> None:
    """Print one string with which others join: the addresses of a running node, and the swarm's key.

    With ADDR… it names those addresses in place of the running node's. Whoever has the string of a closed
    swarm has its key: hand it over as you would the key.
    """
    key = None if swarm_key is None else read_swarm_key(swarm_key)
    chosen = addrs or tuple(preferred(run_async(_addrs, api, key)))[:ADDRESSES_MAX]
    if len(chosen) > ADDRESSES_MAX:
        raise CommandError(f"an invite holds {ADDRESSES_MAX} addresses, not {len(chosen)}")
    text = encode_invite(Invite(chosen, key))
    if as_json:
        key_id = None if key is None else key.key_id
        click.echo(json.dumps({"invite": text, "addrs": list(chosen), "swarm_key_id": key_id}))
        return
    click.echo(text)
    if all(is_loopback(addr) for addr in chosen):
        click.echo("Note: it names addresses of this machine only, so only nodes on it can use it.", err=True)
    if key is None:
        click.echo(f"Note: {OPEN_SWARM}", err=True)


async def _addrs(api: NodeApi, key: SwarmKey | None) -> tuple[str, ...]:
    """Where the running node can be joined, if it is in the swarm of this key. Raises `CommandError`."""
    async with open_client(api) as client:
        status = await client.get("/peerinfer/v1/status")
    node_key_id, key_id = status.get("swarm_key_id"), None if key is None else key.key_id
    if node_key_id is not None and key is None:
        raise CommandError(f"the swarm of the node at {api.url} has a key: give its file with --swarm-key")
    if node_key_id != key_id:
        raise CommandError(
            f"the node at {api.url} is not in the swarm of this key:"
            f" the key is {key_id or 'none'}, the node's {node_key_id or 'none'}"
        )
    addrs = tuple(addr for addr in status.get("addrs") or () if isinstance(addr, str))
    if not addrs:
        raise CommandError(f"the node at {api.url} has no address that others can dial")
    return addrs


def parse_whom(text: str) -> str:
    """An address or an invite to join by, or `-` for one on stdin. Raises `AddressError`."""
    if text == "-":
        return parse_whom(sys.stdin.readline(INVITE_CHARS_MAX + 1).strip() or "(nothing on stdin)")
    if not is_invite(text):
        return parse_join(text)
    try:
        decode_invite(text)
    except InviteError as error:
        raise AddressError(str(error)) from None
    return text


def unfold(whom: Sequence[str], key: SwarmKey | None) -> tuple[tuple[str, ...], SwarmKey | None]:
    """Addresses, and the key that goes with them, out of addresses and invites. Raises `CommandError`."""
    addrs: list[str] = []
    for each in whom:
        if not is_invite(each):
            addrs.append(each)
            continue
        found = decode_invite(each)
        try:
            addrs += [parse_join(addr) for addr in found.addrs]
        except AddressError as error:
            raise CommandError(f"the invite names what is no address: {error}") from None
        if key is not None and found.key is not None and found.key != key:
            raise CommandError("the invite is for the swarm of another key than the one given")
        key = key or found.key
    return tuple(addrs), key
