"""`serve`, `join` and `bootstrap` as real processes with the simulated engine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from peerinfer import __version__
from peerinfer.cli.main import peerinfer
from tests.cli.processes import START_S, running

STOP_S = 15.0
"""One that hangs takes for ever; one that stops takes half a second, and much more on a busy machine."""
PEER = "12D3KooWSj6jQEeeZAgdKb12WPQjvGMM5mWZWLPPUeM6dBuPkjCA"
LOOPBACK = ("--listen", "/ip4/127.0.0.1/tcp/0")


def simulated(tmp_path: Path, *arguments: str) -> tuple[str, ...]:
    """Options of a node that needs no model and gets in nobody's way."""
    return (*arguments, "--engine", "simulated", "--data-dir", str(tmp_path / "data"), *LOOPBACK)


def run(*arguments: str) -> Result:
    """A command line that ends by itself, in process."""
    return CliRunner().invoke(peerinfer, list(arguments))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_node_says_how_to_use_and_join_it_and_stops_within_3_s(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A stop was asked for: status 0, and no traceback."""
    with running(tmp_path, *simulated(tmp_path, "serve", "--http", "127.0.0.1:0")) as node:
        block = node.wait_for("Ctrl-C stops it.")
        node.wait_for("engine=simulated state=ready", in_stderr=True)
        status, seconds = node.stop(number)
    assert block.startswith(f"peerinfer {__version__} is up: simulated, simulated engine")
    assert "OpenAI API   http://127.0.0.1:" in block
    assert "/v1/chat/completions -H 'content-type: application/json'" in block
    assert "peerinfer join /ip4/127.0.0.1/tcp/" in block
    assert "0.0.0.0" not in block.replace("--listen /ip4/0.0.0.0/tcp/0", "")
    assert "it listens on this machine only" in block
    assert (status, seconds < STOP_S) == (0, True)
    assert "Traceback" not in node.stderr


def test_json_is_one_object_and_its_addresses_work(tmp_path: Path) -> None:
    """A second node joins by the first one's address; both stay up until told, and it says goodbye."""
    with running(
        tmp_path / "1", *simulated(tmp_path / "1", "serve", "--http", "127.0.0.1:0", "--json")
    ) as first:
        ready = json.loads(first.wait_for("\n"))
        assert set(ready) == {"peer_id", "listen", "http", "model", "engine", "version"}
        assert (ready["model"], ready["engine"], ready["version"]) == ("simulated", "simulated", __version__)
        joins = ("join", ready["listen"][0], "--http", "127.0.0.1:0", "--json")
        with running(tmp_path / "2", *simulated(tmp_path / "2", *joins)) as second:
            second.wait_for("state=linked", in_stderr=True)
            first.wait_for("state=alive", in_stderr=True)
            url = json.loads(second.wait_for("\n"))["http"]
            (peer,) = httpx.get(f"{url}/peerinfer/v1/peers").json()["peers"]
            assert peer["peer_id"] == ready["peer_id"]
            assert second.stop(signal.SIGINT)[0] == 0
        first.wait_for("state=left", in_stderr=True)
        assert first.wait_for("\n").count("\n") == 1


def test_a_peer_that_cannot_be_reached_is_told_once_and_tried_on(tmp_path: Path) -> None:
    """The node serves alone meanwhile; the peer is a port where nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        addr = f"/ip4/127.0.0.1/tcp/{unused.getsockname()[1]}/p2p/{PEER}"
        joins = ("join", addr, "--http", "127.0.0.1:0", "--json")
        with running(tmp_path, *simulated(tmp_path, *joins)) as node:
            url = json.loads(node.wait_for("\n"))["http"]
            node.wait_for("state=unreachable", in_stderr=True)
            answer = run("ask", "Hello", "--max-tokens", "3", "--api", url)
            assert answer.exit_code == 0, answer.stderr
            shown = run("status", "--api", url).stdout
            assert "none: it serves alone" in shown
            assert f"not linked  {addr}: nobody listens there" in shown
            status, _ = node.stop(signal.SIGINT)
    assert status == 0
    assert node.stderr.count("state=unreachable") == 1
    assert f"peer=…{PEER[-6:]} state=unreachable" in node.stderr


def test_a_node_ends_with_whoever_holds_its_stdin(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    arguments = simulated(tmp_path, "serve", "--http", "127.0.0.1:0", "--json", "--until-stdin-closes")
    with running(tmp_path, *arguments, stdin=reading) as node:
        os.close(reading)
        node.wait_for("\n")
        os.close(writing)
        assert node.process.wait(START_S) == 0


def test_what_is_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    """Data directory, HTTP port and listening address of a node that runs."""
    with running(tmp_path, *simulated(tmp_path, "serve", "--http", "127.0.0.1:0", "--json")) as node:
        ready = json.loads(node.wait_for("\n"))
        common = ("serve", "--engine", "simulated", "--http", "127.0.0.1:0")
        other = ("--data-dir", str(tmp_path / "other"))
        listen = ready["listen"][0].partition("/p2p/")[0]
        port = ready["http"].removeprefix("http://")
        for arguments, reason in (
            ((*common, "--data-dir", str(tmp_path / "data")), f"in use by process {node.process.pid}"),
            ((*common, *other, "--http", port), "is taken"),
            ((*common, *other, "--listen", listen), f"cannot listen on {listen}: Address already in use"),
        ):
            result = run(*arguments)
            assert (result.exit_code, result.stdout) == (2, "")
            assert reason in result.stderr
            assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("join", "/ip4/192.0.2.7/tcp/4001"), "'/p2p/…' is missing"),
        (("join", f"/ip4/0.0.0.0/tcp/1/p2p/{PEER}", "--engine", "simulated"), "where a node listens"),
        (("join",), "whom to join?"),
        (("serve", "--allow-peer", PEER, "--deny-peer", PEER), "is both allowed and denied"),
        (("bootstrap", "--allow-peer", PEER, "--deny-peer", PEER), "is both allowed and denied"),
        (("serve", "--deny-peer", "me"), "--deny-peer: me: this is no peer id"),
        (("serve", "--listen", "/ip4/0.0.0.0"), "/tcp/PORT must follow"),
        (("serve", "--http", "8000"), "give HOST:PORT"),
        (("serve", "--policy", "fastest"), "'cost', 'longest-prefix', 'local', 'round-robin', 'random'"),
        (("serve", "--model", "no-such-file.gguf"), "there is no file no-such-file.gguf"),
        (
            ("serve", "--engine", "simulated", "--http", "192.0.2.1:0", "--insecure"),
            "Cannot assign requested address; choose another with --http",
        ),
        (
            ("serve", "--engine", "simulated", "--http", "0.0.0.0:0"),
            "reached from other machines: give --api-key",
        ),
        (("serve", "--engine", "simulated", "--api-key", "two words"), "api_key: allowed are 1 to 512"),
        (
            ("serve", "--engine", "simulated", "--api-key-file", "/no/such"),
            "cannot read the API key /no/such",
        ),
        (("serve", "--page-size", "0"), "'--page-size'"),
        (("serve", "--engine-url", "localhost"), "'localhost' is no URL of a server"),
        (("serve", "--engine", "simulated", "--", "--tp", "2"), "flags behind -- are for SGLang"),
        (("serve", "--engine", "sglang", "--engine-python", "/no/python"), "is no Python that runs"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    result = run(*arguments, "--data-dir", str(tmp_path))
    assert result.exit_code == 2, result.output
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_bootstrap_peers_help_is_about_a_bootstrap_peer() -> None:
    """Its data directory has no HTTP port in its name, and its HTTP face is only there for who asks."""
    shown, of_node = (" ".join(run(command, "--help").stdout.split()) for command in ("bootstrap", "serve"))
    assert "[default: one for a bootstrap peer]" in shown
    assert "ask this peer (--api). [default: nowhere]" in shown
    assert "once HTTP answers" not in shown
    assert "[default: one per HTTP port]" in of_node


def test_a_missing_default_model_is_told_where_nobody_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEERINFER_MODELS", str(tmp_path))
    result = run("serve", "--data-dir", str(tmp_path))
    assert result.exit_code == 2
    assert "run `peerinfer model fetch`" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_policy_in_the_config_file_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text('[routing]\npolicy = "fastest"\n')
    result = run("serve", "--config", str(tmp_path / "node.toml"))
    assert result.exit_code == 2
    assert "[routing] policy: there is no 'fastest'; known are cost, " in result.stderr


def test_nodes_meet_through_a_bootstrap_peer(tmp_path: Path) -> None:
    """The config file in `bootstrap/` works but for its port and directory."""
    config = Path(__file__).parents[2] / "bootstrap" / "config.toml"
    overrides = ("--config", str(config), "--data-dir", str(tmp_path / "boot" / "data"), *LOOPBACK, "--json")
    with running(tmp_path / "boot", "bootstrap", *overrides, "--http", "127.0.0.1:0") as boot:
        ready = json.loads(boot.wait_for("\n"))
        assert (ready["model"], ready["engine"]) == (None, None)
        joins = ("join", ready["listen"][0], "--http", "127.0.0.1:0", "--json")
        with (
            running(tmp_path / "1", *simulated(tmp_path / "1", *joins)) as first,
            running(tmp_path / "2", *simulated(tmp_path / "2", *joins)) as second,
        ):
            first.wait_for("state=alive", in_stderr=True)
            second.wait_for("state=alive", in_stderr=True)
            shown = run("peers", "--api", json.loads(first.wait_for("\n"))["http"]).stdout
            assert f"…{ready['peer_id'][-6:]} introduces peers to each other" in shown
            boot.wait_for("peers=2 reservations=", in_stderr=True)
            told = run("status", "--api", ready["http"]).stdout
            assert "bootstrap: introduces peers" in told
            assert re.search(r"^links +2 *$", told, re.MULTILINE)
            assert run("peers", "--api", ready["http"]).stdout.count(" direct ") == 2
            assert run("invite", "--api", ready["http"]).stdout.startswith("pinv1")
        status, seconds = boot.stop(signal.SIGTERM)
    assert (status, seconds < STOP_S, "Traceback" in boot.stderr) == (0, True, False)


def test_a_node_that_is_terminated_finishes_its_streams_first(tmp_path: Path) -> None:
    """SIGTERM in the middle of an answer of some seconds: the client gets all of it, then the node ends, with
    status 0; a client that comes meanwhile is sent elsewhere."""
    with running(tmp_path, *simulated(tmp_path, "serve", "--http", "127.0.0.1:0", "--json")) as node:
        http = json.loads(node.wait_for("\n"))["http"]
        node.wait_for("engine=simulated state=ready", in_stderr=True)
        body = {"model": "simulated", "prompt": "once upon a time", "max_tokens": 80, "stream": True}
        with httpx.stream("POST", f"{http}/v1/completions", json=body, timeout=60, trust_env=False) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            node.process.send_signal(signal.SIGTERM)
            node.wait_for("state=draining", in_stderr=True)
            late = httpx.post(f"{http}/v1/completions", json=body, timeout=60, trust_env=False)
            told = [line for line in lines if line]
        assert node.process.wait(60) == 0
    assert told[-1] == "data: [DONE]"
    assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
