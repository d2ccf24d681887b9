"""`why` and `top` against a scripted node."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result
from rich.console import Console

from peerinfer.cli.main import peerinfer
from peerinfer.cli.why import candidates_table
from tests.cli.conftest import PEERS, STATUS

ME, OTHER = "12D3KooWaaaAAAAAA", "12D3KooWaaaBBBBBB"
PATH = "/peerinfer/v1/requests/req-1"
DECISION: dict[str, Any] = {
    "request_id": "req-1",
    "role": "entry",
    "endpoint": "chat",
    "entry": ME,
    "policy": "cost",
    "prompt_tokens": 540,
    "candidates": [
        {"peer_id": OTHER, "self": False, "expected_cached_tokens": 400, "snapshot_age_s": 0.2,
         "rtt_s": 0.002, "wait_s": 0.0, "cost_s": 0.3},
        {"peer_id": ME, "self": True, "expected_cached_tokens": 0, "snapshot_age_s": None, "rtt_s": 0.0,
         "wait_s": 0.0, "cost_s": 1.1},
    ],
    "asked": [OTHER],
    "skipped": [{"peer_id": "12D3KooWaaaCCCCCC", "reason": "suspect"}],
    "chosen": OTHER,
    "reason": "cheapest by 0.8 s",
    "expected_cached_tokens": 400,
    "cached_tokens": 384,
    "ttft_s": 0.25,
    "duration_s": 1.5,
    "attempts": [{"peer_id": ME, "outcome": "failed"}, {"peer_id": OTHER, "outcome": "served"}],
    "error": None,
}  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(peerinfer, list(arguments))


def why(node: Any, **changes: object) -> str:
    node.json[PATH] = DECISION | changes
    done = run("why", "req-1", "--api", node.url)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_why_tells_the_story_and_the_candidates(scripted_node: Any) -> None:
    lines = why(scripted_node).splitlines()
    assert lines[:6] == [
        "served by …BBBBBB, forwarded by …AAAAAA; …AAAAAA was tried first: cheapest by 0.8 s",
        "prompt of 540 tokens: 400 expected in the cache, 384 found there",
        "first token after 250 ms, 1.50 s in all (policy cost)",
        "tried: …AAAAAA failed, …BBBBBB served",
        "asked before what they have of it, and for their wait: …BBBBBB",
        "left out: …CCCCCC suspect",
    ]
    assert [line.split()[0] for line in lines[7:]] == ["expected", "candidate", "…BBBBBB", "…AAAAAA"]
    assert lines[9].endswith("served")
    assert "…AAAAAA (here)" in lines[10]


def test_the_candidates_fit_into_a_terminal_of_80_columns() -> None:
    """Nothing is cut, with every time as long as times are written."""
    times = dict.fromkeys(("snapshot_age_s", "rtt_s", "wait_s", "others_s", "cost_s"), 12.34)
    rows = [{"peer_id": ME, "self": True, "expected_cached_tokens": 131072} | times]
    console = Console(width=80)
    with console.capture() as shown:
        console.print(candidates_table(rows, chosen=ME))
    assert "…AAAAAA (here)    131072" in shown.get()
    assert shown.get().count("12.34 s") == 5
    assert shown.get().rstrip().endswith("served")


def test_why_at_the_serving_node_and_without_an_end(scripted_node: Any) -> None:
    shown = why(
        scripted_node, role="serving", chosen=ME, entry=OTHER, candidates=[], cached_tokens=None, ttft_s=None,
        duration_s=None, error="it broke", prompt_tokens=None, attempts=[], skipped=[],
    )  # fmt: skip
    assert "served by …AAAAAA, for …BBBBBB" in shown
    assert "prompt of unknown length" in shown
    assert "first token after -, - in all" in shown
    assert "it ended with: it broke" in shown
    assert "candidate" not in shown
    assert "where it came in" in why(scripted_node, chosen=ME)
    assert "served by nobody: " in why(scripted_node, chosen=None)
    once = [{"peer_id": OTHER, "outcome": "served"}]
    assert "served by …BBBBBB, forwarded by …AAAAAA: " in why(scripted_node, attempts=once)


def test_what_peers_say_cannot_steer_the_terminal(scripted_node: Any) -> None:
    assert "\x1b" not in why(scripted_node, error="\x1b[2Jgone", reason="[red]\x07")


def test_why_as_json_is_what_the_node_said(scripted_node: Any) -> None:
    scripted_node.json[PATH] = DECISION
    assert json.loads(run("why", "req-1", "--json", "--api", scripted_node.url).stdout) == DECISION


def test_a_request_that_is_not_kept_is_status_1(scripted_node: Any) -> None:
    done = run("why", "../status", "--api", scripted_node.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1


def test_top_looks_again_and_again(scripted_node: Any) -> None:
    done = run("top", "--times", "2", "--interval", "0.1", "--api", scripted_node.url)
    assert done.exit_code == 0
    assert done.stdout.count("12D3KooWMeMeMe") == 2
    assert done.stdout.count("…BBBBBB") == 2
    looks = run("top", "--times", "3", "--interval", "0.1", "--json", "--api", scripted_node.url).stdout
    assert [json.loads(line) for line in looks.splitlines()] == [
        {"status": STATUS, "peers": PEERS["peers"]}
    ] * 3


def test_top_without_a_node_is_status_1_and_a_node_that_stops_is_news(scripted_node: Any) -> None:
    assert run("top", "--api", "http://127.0.0.1:9", "--times", "1").exit_code == 1
    answers = iter([STATUS, None, STATUS])

    class Once(dict[str, object]):
        def get(self, path: str, default: object = None) -> object:
            return next(answers) if path.endswith("status") else super().get(path, default)

    scripted_node.json = Once(scripted_node.json)
    done = run("top", "--times", "3", "--interval", "0.1", "--json", "--api", scripted_node.url)
    assert [sorted(json.loads(line)) for line in done.stdout.splitlines()] == [
        ["peers", "status"], ["error"], ["peers", "status"],
    ]  # fmt: skip
