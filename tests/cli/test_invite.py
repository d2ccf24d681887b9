"""`peerinfer invite` and what `join` makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peerinfer.cli.errors import CommandError
from peerinfer.cli.invite import unfold
from peerinfer.cli.key import read_swarm_key
from peerinfer.cli.main import peerinfer
from peerinfer.core.invite import Invite, decode_invite, encode_invite
from peerinfer.core.swarm_key import SwarmKey
from tests.cli.conftest import STATUS

PEER = "12D3KooWSj6jQEeeZAgdKb12WPQjvGMM5mWZWLPPUeM6dBuPkjCA"
LAN, LOOPBACK = (f"/ip4/{host}/tcp/4001/p2p/{PEER}" for host in ("192.0.2.7", "127.0.0.1"))
KEY = SwarmKey(b"k" * 32)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(peerinfer, list(arguments), input=stdin)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    run("key", "new", str(tmp_path / "swarm.key"))
    return str(tmp_path / "swarm.key")


def test_an_invite_names_what_a_running_node_can_be_dialled_by(scripted_node: Any, key_file: str) -> None:
    key = read_swarm_key(Path(key_file))
    scripted_node.json["/peerinfer/v1/status"] = STATUS | {
        "addrs": [LOOPBACK, LAN],
        "swarm_key_id": key.key_id,
    }
    done = run("invite", "--swarm-key", key_file, "--api", scripted_node.url)
    assert done.exit_code == 0
    assert decode_invite(done.stdout.strip()) == Invite((LAN,), key)
    assert done.stderr == ""
    as_json = json.loads(run("invite", "--swarm-key", key_file, "--api", scripted_node.url, "--json").stdout)
    assert as_json == {"invite": done.stdout.strip(), "addrs": [LAN], "swarm_key_id": key.key_id}


def test_an_invite_names_the_relays_of_a_node_too(scripted_node: Any) -> None:
    """Who cannot dial the node finds it through them; a few, behind its own addresses."""
    relays = [f"/ip4/203.0.113.{number}/tcp/4001/p2p/{PEER}" for number in range(9)]
    private = [f"/ip4/192.168.1.{number}/tcp/4001/p2p/{PEER}" for number in range(9)]
    scripted_node.json["/peerinfer/v1/status"] = STATUS | {"addrs": private, "network": {"relays": relays}}
    done = run("invite", "--api", scripted_node.url)
    assert decode_invite(done.stdout.strip()).addrs == (*private[:5], *relays[:3])
    assert "private" not in done.stderr
    scripted_node.json["/peerinfer/v1/status"] = STATUS | {"addrs": [], "network": {"relays": relays[:1]}}
    assert decode_invite(run("invite", "--api", scripted_node.url).stdout.strip()).addrs == (relays[0],)


def test_an_invite_into_a_private_network_says_that_nobody_else_can_use_it(scripted_node: Any) -> None:
    for host in ("192.168.1.5", "10.1.2.3", "100.64.0.9"):
        addr = f"/ip4/{host}/tcp/4001/p2p/{PEER}"
        scripted_node.json["/peerinfer/v1/status"] = STATUS | {"addrs": [addr]}
        assert "addresses of a private network only" in run("invite", "--api", scripted_node.url).stderr
    for addr in (LAN, f"/dns4/example.org/tcp/4001/p2p/{PEER}"):
        scripted_node.json["/peerinfer/v1/status"] = STATUS | {
            "addrs": [addr, f"/ip4/10.0.0.1/tcp/1/p2p/{PEER}"]
        }
        assert "private" not in run("invite", "--api", scripted_node.url).stderr


def test_who_joined_by_an_invite_invites_the_next_with_it(scripted_node: Any) -> None:
    """The key is taken out of it; the addresses are those of the running node, or those given."""
    scripted_node.json["/peerinfer/v1/status"] = STATUS | {"addrs": [LAN], "swarm_key_id": KEY.key_id}
    text = encode_invite(Invite((LOOPBACK,), KEY))
    done = run("invite", "-", "--api", scripted_node.url, stdin=text + "\n")
    assert (done.exit_code, decode_invite(done.stdout.strip())) == (0, Invite((LAN,), KEY))
    done = run("invite", text, LOOPBACK)
    assert decode_invite(done.stdout.strip()) == Invite((LOOPBACK,), KEY)


def test_nobody_is_invited_to_where_a_node_listens() -> None:
    for host in ("ip4/0.0.0.0", "ip6/::"):
        done = run("invite", f"/{host}/tcp/4001/p2p/{PEER}")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "where a node listens" in done.stderr


def test_an_invite_for_an_open_swarm_says_what_that_means(scripted_node: Any) -> None:
    scripted_node.json["/peerinfer/v1/status"] = STATUS | {"addrs": [LOOPBACK]}
    done = run("invite", "--api", scripted_node.url)
    assert decode_invite(done.stdout.strip()) == Invite((LOOPBACK,), None)
    assert "addresses of this machine only" in done.stderr
    assert "this swarm has no key" in done.stderr


def test_addresses_may_be_given(key_file: str) -> None:
    done = run("invite", LOOPBACK, LAN, "--swarm-key", key_file)
    assert decode_invite(done.stdout.strip()).addrs == (LOOPBACK, LAN)
    assert "no key" not in done.stderr
    assert "it holds no key, so it is of use in an open swarm only" in run("invite", LAN).stderr
    assert run("invite", *[LAN] * 9, "--swarm-key", key_file).exit_code == 2


@pytest.mark.parametrize(
    ("status", "with_key", "reason"),
    [
        ({"addrs": [LAN], "swarm_key_id": "00000000"}, False, "has a key: give its file"),
        ({"addrs": [LAN], "swarm_key_id": "00000000"}, True, "the node's 00000000"),
        ({"addrs": [LAN], "swarm_key_id": None}, True, "the node's none"),
        ({"addrs": []}, False, "no address that others can dial"),
    ],
)
def test_what_would_be_a_useless_invite_is_an_error(
    scripted_node: Any, key_file: str, status: dict[str, object], with_key: bool, reason: str
) -> None:
    scripted_node.json["/peerinfer/v1/status"] = STATUS | status
    done = run("invite", "--api", scripted_node.url, *(["--swarm-key", key_file] if with_key else []))
    assert (done.exit_code, done.stdout) == (2, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["join", "bootstrap"])
def test_a_damaged_invite_is_one_line_and_not_repeated(command: str) -> None:
    text = encode_invite(Invite((LAN,), KEY))
    for arguments, stdin in (((text[:-3],), None), (("-",), text[:-3] + "\n")):
        done = run(command, *arguments, stdin=stdin)
        assert done.exit_code == 2
        assert "the invite is damaged: copy it whole" in done.stderr
        assert text[10:30] not in done.stderr
        assert done.stderr.count("\n") == 1
    assert "from stdin, and nothing was there" in run(command, "-", stdin="").output
    for whom in (text[1:], "192.0.2.7:4001"):
        done = run(command, whom)
        assert done.exit_code == 2
        assert "neither an address, as /ip4/" in done.stderr
        assert whom not in done.stderr


def test_addresses_and_invites_go_together_unless_their_keys_differ() -> None:
    invite, other = (encode_invite(Invite((LAN,), key)) for key in (KEY, SwarmKey(b"o" * 32)))
    opened = encode_invite(Invite((LAN,), None))
    assert unfold([LOOPBACK, invite, opened], None) == ((LOOPBACK, LAN, LAN), KEY)
    assert unfold([opened], KEY) == ((LAN,), KEY)
    assert unfold([opened], None) == ((LAN,), None)
    with pytest.raises(CommandError, match="another key"):
        unfold([invite], SwarmKey(b"o" * 32))
    with pytest.raises(CommandError, match="another key"):
        unfold([invite, other], None)
    with pytest.raises(CommandError, match="no address: "):
        unfold([encode_invite(Invite(("/ip4/x",), None))], None)
