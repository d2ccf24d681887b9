"""The demo's table and its summary."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from peerinfer.cli.client import Answer
from peerinfer.cli.demo_table import Row, make_row, print_header, print_row, print_summary, summarise, verdict


def row(
    number: int, *, served_by: str = "node 1", cached: int = 0, expected: int = 0, ttft_s: float = 1.0
) -> Row:
    answer = Answer(
        route="local" if served_by == "node 1" else "forwarded",
        expected_cached_tokens=expected,
        cached_tokens=cached,
        prompt_tokens=100,
        ttft_s=ttft_s,
        duration_s=ttft_s + 1,
    )
    return make_row(answer, number=number, routed=True, topic="ferry", entry="node 1", served_by=served_by)


def printed(*rows: Row) -> list[str]:
    console = Console(file=io.StringIO(), width=80, soft_wrap=True)
    print_header(console)
    for one in rows:
        print_row(console, one)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_rows_stand_under_their_header() -> None:
    header, first, last = printed(
        row(1, cached=0, ttft_s=12.345), row(120, served_by="node 4", cached=96, expected=80, ttft_s=0.0784)
    )
    assert " ".join(first.split()) == "1 on ferry node 1 node 1 local 0 0 100 12.35 s"
    assert " ".join(last.split()) == "120 on ferry node 1 node 4 forwarded 80 96 100 78 ms"
    for name in ("served by", "route"):
        start = header.index(name)
        assert first[start - 1] == last[start - 1] == " "
        assert first[start] != " "
    for name in ("expected", "cached"):
        end = header.index(name) + len(name)
        assert first[end] == " "
        assert first[end - 1].isdigit()
    assert {len(line) for line in (header, first, last)} == {79}


def test_the_summary_counts_tokens_and_divides_late() -> None:
    rows = [
        row(1),
        row(2, served_by="node 2", cached=96, expected=96, ttft_s=0.1),
        row(3, served_by="node 2", cached=64, expected=80, ttft_s=0.4),
    ]
    summary = summarise(rows)
    assert summary.hit_rate == pytest.approx(160 / 300)
    assert summary.expected_hit_rate == pytest.approx(176 / 300)
    assert (summary.requests, summary.forwarded, summary.as_expected) == (3, 2, 2)
    assert summary.hottest_share == pytest.approx(2 / 3)
    assert summary.mean_ttft_s == pytest.approx(0.5)
    assert summary.median_ttft_s == pytest.approx(0.4)


def test_the_verdict_is_honest_both_ways() -> None:
    fast, slow = summarise([row(1, ttft_s=0.5)]), summarise([row(1, ttft_s=2.0)])
    assert verdict(fast, slow) == "With routing the first token came 4.0 times sooner on average."
    assert verdict(slow, fast).startswith("Routing did not pay off in this run: the mean TTFT is 4.00 times")
    console = Console(file=io.StringIO(), width=80)
    print_summary(console, fast, slow)
    assert isinstance(console.file, io.StringIO)
    assert "mean TTFT                     500 ms       2.00 s" in console.file.getvalue()


def test_an_answer_without_text_counts_with_its_whole_duration() -> None:
    made = make_row(
        Answer(duration_s=0.7), number=1, routed=False, topic="ferry", entry="node 1", served_by="?"
    )
    assert (made.ttft_s, made.cached_tokens, made.prompt_tokens, made.route) == (0.7, 0, 0, "?")
