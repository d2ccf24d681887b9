"""`ask`, `status` and `peers` against a scripted node."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peerinfer.cli.main import peerinfer


def run(*arguments: str, stdin: str | None = None, **env: str) -> Result:
    """One command line, in process."""
    return CliRunner().invoke(peerinfer, list(arguments), input=stdin, env=env)


def test_ask_streams_the_answer_to_stdout_and_its_provenance_to_stderr(scripted_node: Any) -> None:
    result = run("ask", "Hi", "--max-tokens", "5", "--api", scripted_node.url)
    assert result.exit_code == 0
    assert result.stdout == "Hello wörld\n"
    assert result.stderr.startswith(
        "served by …BBBBBB, forwarded · cached 32 of 40 tokens (expected 32) · first text after "
    )
    assert result.stderr.endswith(" · req-1\n")
    assert result.stderr.count("\n") == 1
    (body,) = scripted_node.bodies
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("tiny", 5, True)


def test_ask_names_all_who_served_a_part_of_the_answer(scripted_node: Any) -> None:
    """An answer that broke off twice went on at two others; who refused, and a second try, are no parts."""
    outcomes = [
        ("CCCCCC", "slower"),
        ("BBBBBB", "broken"),
        ("CCCCCC", "broken"),
        ("CCCCCC", "broken"),
        ("DDDDDD", "served"),
    ]
    attempts = [{"peer_id": f"12D3KooWaaa{peer}", "outcome": outcome} for peer, outcome in outcomes]
    scripted_node.json["/peerinfer/v1/requests/req-1"] = {"attempts": attempts}
    result = run("ask", "Hi", "--api", scripted_node.url)
    assert result.stderr.startswith("served by …BBBBBB, forwarded, then by …CCCCCC, then by …DDDDDD · ")
    answer = json.loads(run("ask", "Hi", "--json", "--api", scripted_node.url).stdout)
    assert [peer[-6:] for peer in answer["servers"]] == ["BBBBBB", "CCCCCC", "DDDDDD"]


def test_ask_json_prints_one_object_and_nothing_else(scripted_node: Any) -> None:
    result = run("ask", "Hi", "--json", PEERINFER_API=scripted_node.url)
    answer = json.loads(result.stdout)
    assert result.stderr == ""
    assert answer.pop("ttft_s") > 0
    assert answer.pop("duration_s") > 0
    assert answer == {
        "request_id": "req-1",
        "served_by": "12D3KooWaaaBBBBBB",
        "servers": ["12D3KooWaaaBBBBBB"],
        "route": "forwarded",
        "expected_cached_tokens": 32,
        "cached_tokens": 32,
        "prompt_tokens": 40,
        "completion_tokens": 2,
        "text": "Hello wörld",
    }


def test_ask_dash_reads_the_question_from_stdin(scripted_node: Any) -> None:
    result = run("ask", "-", "--api", scripted_node.url + "/v1/", stdin="From a pipe\n")
    assert result.exit_code == 0
    assert scripted_node.bodies[0]["messages"][0]["content"] == "From a pipe\n"


@pytest.mark.parametrize("command", [("ask", "Hi"), ("status",), ("peers",)])
def test_the_key_goes_along_with_every_request(
    scripted_node: Any, command: tuple[str, ...], tmp_path: Path
) -> None:
    """As an option, in a file, in the environment; the more explicit one counts."""
    result = run(*command, "--api-key", "s3cret", "--api", scripted_node.url)
    assert result.exit_code == 0
    assert {each.get("authorization") for each in scripted_node.request_headers} == {"Bearer s3cret"}
    scripted_node.request_headers.clear()
    assert run(*command, PEERINFER_API=scripted_node.url, PEERINFER_API_KEY="other").exit_code == 0
    assert {each.get("authorization") for each in scripted_node.request_headers} == {"Bearer other"}
    scripted_node.request_headers.clear()
    file = tmp_path / "api.key"
    file.write_text("filed\n")
    file.chmod(0o600)
    for environment in ({}, {"PEERINFER_API_KEY": "other"}):
        asked = run(*command, "--api", scripted_node.url, "--api-key-file", str(file), **environment)
        assert asked.exit_code == 0
        assert {each.get("authorization") for each in scripted_node.request_headers} == {"Bearer filed"}
        scripted_node.request_headers.clear()
    file.chmod(0o644)
    assert run(*command, "--api", scripted_node.url, "--api-key-file", str(file)).exit_code == 2
    assert run(*command, "--api", scripted_node.url).exit_code == 0
    assert {each.get("authorization") for each in scripted_node.request_headers} == {None}


def test_an_empty_question_is_not_sent(scripted_node: Any) -> None:
    result = run("ask", "-", "--api", scripted_node.url, stdin=" \n")
    assert (result.exit_code, scripted_node.bodies) == (2, [])
    assert one_line(result).startswith("peerinfer: the question is empty")


def test_text_with_unicode_line_separators_arrives_whole(scripted_node: Any) -> None:
    """U+2028 and U+0085 may stand inside JSON: they do not end an event."""
    scripted_node.events = [{"choices": [{"delta": {"content": "a\u2028b\u0085c"}}]}, "[DONE]"]
    assert run("ask", "Hi", "--api", scripted_node.url).stdout == "a\u2028b\u0085c\n"


def test_an_answer_without_text_and_usage_is_told_as_such(scripted_node: Any) -> None:
    scripted_node.events, scripted_node.headers = ["[DONE]"], {}
    result = run("ask", "Hi", "--api", scripted_node.url)
    assert result.stderr == "served by ?, route unknown · cached - of - tokens (expected -) · no text\n"


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([{"error": {"message": "the peer is gone"}}], "the answer broke off: the peer is gone"),
        ([], "ended it without [DONE]"),
        (["{not json"], "sent what is no JSON"),
    ],
)
def test_an_answer_that_breaks_off_is_status_1(scripted_node: Any, events: list[Any], reason: str) -> None:
    """The part that came is on stdout, on a line of its own; the reason is one line on stderr."""
    scripted_node.events = [scripted_node.events[0], *events]
    result = run("ask", "Hi", "--api", scripted_node.url)
    assert result.exit_code == 1
    assert result.stdout == "Hello\n"
    assert reason in one_line(result)


def test_a_refusal_says_what_the_node_said(scripted_node: Any) -> None:
    scripted_node.status = 400
    result = run("ask", "Hi", "--api", scripted_node.url)
    assert result.exit_code == 1
    assert one_line(result).endswith("refused (400): prompt is too long\n")


def test_status_is_readable(scripted_node: Any) -> None:
    result = run("status", "--api", scripted_node.url)
    assert result.exit_code == 0
    lines = {line.split("  ")[0]: line for line in result.stdout.splitlines()}
    assert "12D3KooWMeMeMe" in lines["peer"]
    assert "simulated, ready" in lines["engine"]
    assert "1 h 2 min" in lines["up for"]
    assert "3, 1 of them through a relay" in lines["links"]
    assert (
        "5 received: 2 served here, 2 forwarded, 0 refused, 1 failed; 7 served for peers" in lines["requests"]
    )
    assert "12 of 4,096 pages of 16 tokens" in lines["cache"]
    assert "1 running, 0 queued, prefill 250 tokens/s, decode 41 tokens/s" in lines["load"]
    assert "3 request" in lines["dropped"]


def test_status_says_of_a_node_that_is_alone_that_it_is_and_why(scripted_node: Any) -> None:
    unreached = [
        {"addr": f"/ip4/192.0.2.{number}/tcp/1/p2p/Qm", "reason": f"reason {number}"} for number in (7, 8)
    ]
    network = {"links": 0, "peers": 0, "relayed_links": 0, "unreached": unreached, "relays": []}
    scripted_node.json["/peerinfer/v1/status"] |= {"network": network}
    shown = [line.rstrip() for line in run("status", "--api", scripted_node.url).stdout.splitlines()]
    at = shown.index("links       none: it serves alone")
    assert shown[at + 1 : at + 3] == [
        "not linked  /ip4/192.0.2.7/tcp/1/p2p/Qm: reason 7",
        "not linked  /ip4/192.0.2.8/tcp/1/p2p/Qm: reason 8",
    ]


def test_a_node_whose_links_are_of_no_use_to_it_serves_alone_too(scripted_node: Any) -> None:
    """Linked to a bootstrap peer, or to nodes with another model, and to nobody else."""
    network = {"links": 2, "peers": 0, "relayed_links": 1, "unreached": [], "relays": []}
    scripted_node.json["/peerinfer/v1/status"] |= {"network": network}
    shown = run("status", "--api", scripted_node.url).stdout
    assert "2, 1 of them through a relay; none serves what it serves: it serves alone" in shown


def test_peers_has_a_line_per_peer_and_names_what_differs_at_foreign_ones(scripted_node: Any) -> None:
    result = run("peers", "--api", scripted_node.url)
    assert result.exit_code == 0
    header, first, second, foreign = result.stdout.splitlines()
    assert header.split() == ["peer", "state", "link", "round", "trip", "pages", "heard", "load", "address"]
    assert first.split()[:5] == ["…BBBBBB", "suspect", "-", "2", "ms"]
    assert first.endswith("/ip4/192.0.2.7/tcp/4001")
    assert second.split()[:4] == ["…CCCCCC", "alive", "relayed", "-"]
    assert foreign == "…DDDDDD serves something else: chat_template differs"


def test_what_peers_say_is_never_read_as_markup(scripted_node: Any) -> None:
    """A peer that calls its state `[red]` is shown so."""
    peer = {"peer_id": "12D3KooWaaaBBBBBB", "addrs": ["[/bold]"], "state": "[red]:x:"}
    scripted_node.json["/peerinfer/v1/peers"] = {"peers": [peer], "foreign": []}
    result = run("peers", "--api", scripted_node.url)
    assert result.exit_code == 0
    assert "[red]:x:" in result.stdout
    assert "[/bold]" in result.stdout


def test_no_peers_are_told_as_such(scripted_node: Any) -> None:
    scripted_node.json["/peerinfer/v1/peers"] = {"peers": [], "foreign": []}
    assert run("peers", "--api", scripted_node.url).stdout.startswith("no peers yet")


@pytest.mark.parametrize("command", ["status", "peers"])
def test_json_is_what_the_node_said(scripted_node: Any, command: str) -> None:
    result = run(command, "--json", "--api", scripted_node.url)
    assert json.loads(result.stdout) == scripted_node.json[f"/peerinfer/v1/{command}"]


@pytest.mark.parametrize("command", [["ask", "Hi"], ["status"], ["peers", "--json"]])
def test_a_node_that_is_not_there_is_one_line_and_status_1(command: list[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = run(*command, "--api", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        one_line(result) == f"peerinfer: no node answers at {url}: run `peerinfer serve`, or give --api URL\n"
    )


def test_something_else_at_the_url_is_told_apart(scripted_node: Any) -> None:
    scripted_node.json["/peerinfer/v1/status"] = ["a list"]
    result = run("status", "--api", scripted_node.url)
    assert result.exit_code == 1
    assert "not as a peerinfer node does" in one_line(result)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://[::1"])
def test_an_url_that_is_none_is_status_2(url: str) -> None:
    result = run("status", "--api", url)
    assert result.exit_code == 2
    assert one_line(result) == f"peerinfer: --api: '{url}' is no URL, as in http://127.0.0.1:8000\n"


def test_usage_errors_take_one_line() -> None:
    result = run("ask")
    assert result.exit_code == 2
    assert one_line(result) == "peerinfer ask: Missing argument 'TEXT' (see peerinfer ask --help)\n"


def one_line(result: Result) -> str:
    """What is on stderr, which must be one line."""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr
