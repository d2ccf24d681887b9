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

from peerinfer.cli.addresses import EXAMPLE_JOIN, AddressError, checked, parse_join
from peerinfer.cli.client import NodeApi, api_option, open_client
from peerinfer.cli.errors import CommandError, run_async
from peerinfer.cli.key import read_swarm_key, swarm_key_option
from peerinfer.cli.ready import OPEN_SWARM, is_loopback, is_private, preferred
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

RELAY_ADDRESSES_MAX = 3
"""Of an invite's addresses; the rest are the node's own."""
PRIVATE_ONLY = (
    "it names addresses of a private network only, so nodes elsewhere cannot use it (--upnp or --announce"
    " tell an address that they reach; a bootstrap peer passes connections on)."
)

NO_KEY = (
    "it holds no key, so it is of use in an open swarm only, which whoever reaches an address can join"
    " (--swarm-key FILE puts a closed swarm's key in)."
)
"""Nobody asked the peers at these addresses whether theirs has one."""


def parse_whom(text: str) -> str:
    """An address or an invite to join by, or `-` for one on stdin. Raises `AddressError`."""
    if text == "-":
        line = sys.stdin.readline(INVITE_CHARS_MAX + 1).strip()
        if not line:
            raise AddressError("'-' reads an invite or an address from stdin, and nothing was there")
        return parse_whom(line)
    if text.startswith("/"):
        return parse_join(text)
    if not is_invite(text):  # not repeated: it may be most of an invite, and so the key
        raise AddressError(f"neither an address, as {EXAMPLE_JOIN}, nor an invite (pinv1…); copy it whole")
    try:
        decode_invite(text)
    except InviteError as error:
        raise AddressError(str(error)) from None
    return text


@click.command()
@click.argument("whom", nargs=-1, metavar="[ADDR|INVITE]...", callback=checked(parse_whom))
@swarm_key_option
@api_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def invite(whom: tuple[str, ...], swarm_key: Path | None, api: NodeApi, as_json: bool) -> None:
    """Print one string with which others join: the addresses of a running node, and the swarm's key.

    With ADDR… it names those addresses in place of the running node's. The key comes from its file, or from
    an INVITE for the same swarm; `-` reads one from stdin. Whoever has the string of a closed swarm has its
    key: hand it over as you would the key.
    """
    key = None if swarm_key is None else read_swarm_key(swarm_key)
    addrs = tuple(each for each in whom if not is_invite(each))
    _, key = unfold([each for each in whom if is_invite(each)], key)
    chosen = addrs or run_async(_addrs, api, key)
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
    elif all(is_private(addr) for addr in chosen):
        click.echo(f"Note: {PRIVATE_ONLY}", err=True)
    if key is None:
        click.echo(f"Note: {NO_KEY if addrs else OPEN_SWARM}", err=True)


async def _addrs(api: NodeApi, key: SwarmKey | None) -> tuple[str, ...]:
    """Where the running node can be joined, if it is in the swarm of this key. Raises `CommandError`.

    The relays that pass connections on to it come last: who cannot dial the node finds it through them.
    """
    async with open_client(api) as client:
        status = await client.get("/peerinfer/v1/status")
    node_key_id, key_id = status.get("swarm_key_id"), None if key is None else key.key_id
    if node_key_id is not None and key is None:
        raise CommandError(
            f"the swarm of the node at {api.url} has a key: give its file with --swarm-key,"
            " or the invite that the node joined by"
        )
    if node_key_id != key_id:
        raise CommandError(
            f"the node at {api.url} is not in the swarm of this key:"
            f" the key is {key_id or 'none'}, the node's {node_key_id or 'none'}"
        )
    network = status.get("network")
    own = _texts(status.get("addrs"))
    relays = _texts(network.get("relays") if isinstance(network, dict) else None)[:RELAY_ADDRESSES_MAX]
    if not own and not relays:
        raise CommandError(f"the node at {api.url} has no address that others can dial")
    return (*preferred(own)[: ADDRESSES_MAX - len(relays)], *relays)


def _texts(found: object) -> list[str]:
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


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
