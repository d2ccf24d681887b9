"""`peerinfer demo` as a real process with real nodes and the simulated engine."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.processes import Running, running, wait_until

DEMO = ("demo", "--engine", "simulated", "--peers", "2")


def answers(url: str) -> bool:
    """Whether somebody listens there."""
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((str(parts.hostname), int(parts.port or 0))) == 0


def nodes_of(demo: Running) -> list[str]:
    """The URLs of both nodes, once they are up."""
    demo.wait_for("node 2 is up at", in_stderr=True)
    urls = re.findall(r"is up at (\S+)", demo.stderr)
    assert len(urls) == 2
    return urls


def test_the_demo_on_the_real_model_shows_what_routing_saves(tmp_path: Path) -> None:
    """Four nodes, five questions about one text: with routing one node computes it, without all four."""
    with running(tmp_path, "demo", "--requests", "5", "--exit", "--json") as demo:
        assert demo.process.wait(300) == 0, demo.stderr
    shown = json.loads(demo.stdout)
    rows = shown["requests"]
    assert [row["routed"] for row in rows] == [True] * 5 + [False] * 5
    assert [row["entry"] for row in rows] == ["node 1", "node 2", "node 3", "node 4", "node 1"] * 2
    assert all(row["served_by"] == row["entry"] and row["route"] == "local" for row in rows[5:])
    assert all(row["cached_tokens"] >= row["expected_cached_tokens"] for row in rows)
    assert all(row["cached_tokens"] > 0.8 * row["prompt_tokens"] for row in rows[2:5])
    assert shown["routing_on"]["forwarded"] >= 3
    assert shown["routing_on"]["hit_rate"] > shown["routing_off"]["hit_rate"]
    assert shown["routing_on"]["mean_ttft_s"] < shown["routing_off"]["mean_ttft_s"]
    assert "With routing the first token came " in demo.stderr
    assert not any(answers(node["http"]) for node in shown["nodes"])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_no_node_outlives_the_demo(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """Interrupted, it stops them; killed, they notice that nobody holds their stdin."""
    with running(tmp_path, *DEMO, "--json") as demo:
        urls = nodes_of(demo)
        assert all(map(answers, urls))
        assert demo.stop(number)[0] == status
        wait_until(lambda: not any(map(answers, urls)), what="the nodes end")
    assert "Traceback" not in demo.stderr


def test_a_demo_that_was_shown_keeps_running_and_ends_on_a_signal_with_status_0(tmp_path: Path) -> None:
    """Its one object is on stdout by then; the nodes answer until the signal."""
    with running(tmp_path, *DEMO, "--requests", "2", "--json") as demo:
        demo.wait_for("Ctrl-C stops them.", in_stderr=True)
        urls = [node["http"] for node in json.loads(demo.stdout)["nodes"]]
        assert urls == nodes_of(demo)
        assert all(map(answers, urls))
        assert demo.stop(signal.SIGTERM)[0] == 0
        assert not any(map(answers, urls))
