"""The ready block: only addresses that others can dial, and what openness means."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from peerinfer.cli.ready import Ready, print_ready, show_ready

LAN = "/ip4/192.0.2.7/tcp/4001/p2p/12D3KooWme"
LOOPBACK = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWme"
READY = Ready(
    version="1.2.3",
    peer_id="12D3KooWme",
    addrs=[LOOPBACK, LAN, "/ip6/2001:db8::7/tcp/4001/p2p/12D3KooWme"],
    http="http://127.0.0.1:8000",
    model="it's tiny",
    engine="embedded",
    engine_state="loading",
)


def block(ready: Ready) -> str:
    console = Console(file=io.StringIO(), width=80, soft_wrap=True)
    print_ready(console, ready)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_other_machines_are_shown_the_addresses_that_they_can_dial() -> None:
    shown = block(READY)
    assert f"To join it   peerinfer join {LAN}\n" in shown
    assert "or           peerinfer join /ip6/2001:db8::7/tcp/4001/p2p/12D3KooWme\n" in shown
    assert "/ip4/127.0.0.1/tcp" not in shown
    assert "this swarm has no key" in shown
    assert "the API has no key" not in shown


def test_the_curl_line_survives_a_shell() -> None:
    assert """-d '{"model": "it'"'"'s tiny", "messages":""" in block(READY)


def test_a_node_on_loopback_says_that_nobody_else_can_join() -> None:
    shown = block(replace(READY, addrs=[LOOPBACK]))
    assert f"peerinfer join {LOOPBACK}" in shown
    assert "it listens on this machine only" in shown
    assert "no key" not in shown


def test_an_api_that_others_reach_is_pointed_out() -> None:
    assert "the API has no key: whoever reaches its port" in block(replace(READY, open_api=True))


def test_a_closed_swarm_is_joined_with_its_key_and_a_closed_api_called_with_its() -> None:
    shown = block(replace(READY, closed=True, swarm_key="'my swarm.key'", has_api_key=True))
    assert f"peerinfer join {LAN} --swarm-key 'my swarm.key'\n" in shown
    assert '-H "authorization: Bearer $PEERINFER_API_KEY"' in shown
    closed = replace(READY, closed=True, swarm_key="s.key", has_api_key=True, api_key_file="'my api.key'")
    shown = block(closed)
    assert """-H "authorization: Bearer $(head -1 'my api.key')\"""" in shown
    assert "invite --swarm-key s.key --api http://127.0.0.1:8000 --api-key-file 'my api.key'\n" in shown
    assert "no key" not in shown


def test_who_joined_by_an_invite_is_told_how_to_invite_the_next() -> None:
    """Its reader has no file with the key: no line may want one."""
    shown = block(replace(READY, closed=True))
    assert "To join it   peerinfer join INVITE\n" in shown
    assert "or by        peerinfer invite - --api http://127.0.0.1:8000\n" in shown
    assert "INVITE is the one that this node joined by" in shown
    assert "--swarm-key" not in shown
    assert "no key" not in shown


def test_programs_get_the_notes_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    show_ready(READY, as_json=True)
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    assert said.err.startswith("Note: this swarm has no key")
    assert said.err.count("\n") == 1


def test_a_node_without_addresses_says_so() -> None:
    assert "Nobody can join it yet" in block(replace(READY, addrs=[]))


def test_a_bootstrap_peer_shows_no_api() -> None:
    shown = block(replace(READY, http=None, model=None, engine=None, engine_state=None))
    assert shown.startswith("peerinfer 1.2.3 is up: bootstrap peer, no engine\n")
    assert "OpenAI" not in shown
    assert f"peerinfer join {LAN}" in shown


def test_a_bootstrap_peer_that_tells_how_it_is_doing_says_whom_to_ask() -> None:
    shown = block(replace(READY, model=None, engine=None, engine_state=None, api_key_file="api.key"))
    assert "To watch it  peerinfer status --api http://127.0.0.1:8000 --api-key-file api.key\n" in shown
    assert "OpenAI" not in shown


def test_a_bootstrap_peer_of_a_closed_swarm_shows_how_to_invite_through_it() -> None:
    """It has no API that `invite` could ask, so the line names its addresses."""
    bootstrap = replace(
        READY, addrs=[LAN], http=None, model=None, engine=None, engine_state=None, closed=True
    )
    assert f"or by        peerinfer invite --swarm-key s.key {LAN}\n" in block(
        replace(bootstrap, swarm_key="s.key")
    )
    assert f"or by        peerinfer invite - {LAN}\n" in block(bootstrap)
