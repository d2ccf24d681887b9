"""The page of experiments is refilled from results: its tables and figures, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.fill_experiments import fill, main

TEXT = """# A page

<!-- fill paper/t -->
stale
<!-- end -->

What we make of it.

<!-- fill simulated/t real/t -->
<!-- end -->

<!-- fill paper/f.png -->
<!-- end -->

<!-- fill absent/t -->
This stays.
<!-- end -->
"""


def write_run(results: Path, run: str, *rows: str) -> None:
    """A run's directory as `write_report` leaves it."""
    table = {"markdown": ["| Who | n |", "| --- | --: |", *rows], "notes": ["A note."]}
    report = {"measured": f"{run}'s extent.", "tables": {"t": table}, "figures": {"f": "A figure"}}
    (results / run).mkdir(parents=True)
    (results / run / "t.json").write_text(json.dumps(report))
    (results / run / "f.png").write_bytes(run.encode())


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for run in ("paper", "simulated", "real"):
        write_run(tmp_path / "results", run, f"| {run} a | 1 |", f"| {run} b | 2 |")
    return tmp_path / "results"


def test_blocks_are_replaced_and_the_text_around_is_not(results: Path, tmp_path: Path) -> None:
    """Goal: a table, a table of several runs, a figure; what has no results stays and is named."""
    page, left = fill(TEXT, results, tmp_path / "img")
    assert "<!-- fill paper/t -->\n| Who | n |\n| --- | --: |\n| paper a | 1 |\n| paper b | 2 |\n" in page
    assert "A note.\npaper's extent.\n<!-- end -->" in page
    lines = page.splitlines()
    at = lines.index("| Run | Who | n |")
    assert lines[at + 1 : at + 6] == [
        "| --- | --- | --: |",
        "| simulated | simulated a | 1 |",
        "| real | real a | 1 |",
        "| simulated | simulated b | 2 |",
        "| real | real b | 2 |",
    ]
    assert "![A figure](img/f.png)" in page
    assert (tmp_path / "img" / "f.png").read_bytes() == b"paper"
    assert "stale" not in page
    assert "What we make of it." in page
    assert "This stays." in page
    assert left == ["absent/t"]


def test_filling_twice_changes_nothing(results: Path, tmp_path: Path) -> None:
    once, _ = fill(TEXT, results, tmp_path / "img")
    twice, _ = fill(once, results, tmp_path / "img")
    assert twice == once


def test_tables_of_different_columns_are_not_joined(results: Path, tmp_path: Path) -> None:
    report = json.loads((results / "real" / "t.json").read_text())
    report["tables"]["t"]["markdown"][0] = "| Another | n |"
    (results / "real" / "t.json").write_text(json.dumps(report))
    with pytest.raises(SystemExit, match="columns differ"):
        fill(TEXT, results, tmp_path / "img")


def test_the_command_says_what_it_left(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(TEXT)
    assert main([str(results), str(page)]) == 1
    assert capsys.readouterr().err == "left as it was, no results: absent/t\n"
    page.write_text(page.read_text().replace("absent", "paper"))
    assert main([str(results), str(page)]) == 0
    assert "This stays." not in page.read_text()
