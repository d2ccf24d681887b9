#!/usr/bin/env python3
"""Refills the tables and figures of docs/experiments.md from what `peerinfer experiment` wrote.

    python tools/fill_experiments.py RESULTS docs/experiments.md

RESULTS has a directory per run (its `--out`). In the page, whatever stands between

    <!-- fill RUN/TABLE -->          and the next <!-- end -->

is replaced by that table and a line that says how much was measured; RUN/FIGURE.png is copied to `img` beside
the page; several sources with a space between become one table, whose first column names the run, so that
simulated and real stand under each other. The text around is never touched. A block whose results are not
there stays as it is, is named, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"<!-- fill (?P<sources>[^>]+?) -->\n.*?<!-- end -->", re.DOTALL)


class MissingError(Exception):
    """A source's results are not there."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one source has."""

    lines: list[str]
    """Of Markdown: titles, alignment, rows."""
    notes: list[str]
    measured: str
    """How much stands behind it."""


def fill(page: str, results: Path, images: Path) -> tuple[str, list[str]]:
    """The page with every block filled that results are there for, and the blocks that were left."""
    left: list[str] = []

    def replace(block: re.Match[str]) -> str:
        sources = block["sources"].split()
        try:
            inside = _inside(sources, results, images)
        except MissingError as missing:
            left.append(str(missing))
            return block[0]
        return f"<!-- fill {' '.join(sources)} -->\n{inside}\n<!-- end -->"

    return BLOCK.sub(replace, page), left


def _inside(sources: Sequence[str], results: Path, images: Path) -> str:
    if sources[0].endswith(".png"):
        assert len(sources) == 1, "a block has one figure"
        return _figure(sources[0], results, images)
    found = {source: _table(source, results) for source in sources}
    if len(found) == 1:
        [only] = found.values()
        return "\n".join([*only.lines, "", *only.notes, only.measured])
    notes = [f"{source.split('/')[0]}: {each.measured}" for source, each in found.items()]
    return "\n".join([*_joined(found), "", *found[sources[0]].notes, *notes])


def _figure(source: str, results: Path, images: Path) -> str:
    file = results / source
    name = file.stem
    if not file.is_file():
        raise MissingError(source)
    title = _report_with(file.parent, "figures", name)["figures"][name]
    images.mkdir(exist_ok=True)
    shutil.copyfile(file, images / file.name)
    return f"![{title}]({images.name}/{file.name})"


def _table(source: str, results: Path) -> Found:
    run, _, name = source.partition("/")
    report = _report_with(results / run, "tables", name)
    table = report["tables"][name]
    return Found(table["markdown"], table["notes"], report["measured"])


def _report_with(run: Path, kind: str, name: str) -> dict[str, Any]:
    """The report of a run that has this table or figure. Raises `MissingError` if none does."""
    for file in sorted(run.glob("*.json")):
        report: dict[str, Any] = json.loads(file.read_text())
        if name in report.get(kind, {}):
            return report
    raise MissingError(f"{run.name}/{name}")


def _joined(found: dict[str, Found]) -> list[str]:
    """Tables of the same columns as one: each run's first row, then each run's second, and so on."""
    runs = [source.split("/")[0] for source in found]
    heads = {tuple(each.lines[:2]) for each in found.values()}
    if len(heads) > 1:
        raise SystemExit(f"{' '.join(found)}: their columns differ")
    [(titles, alignment)] = heads
    lines = [f"| Run {titles}", f"| --- {alignment}"]
    for rows in zip_longest(*(each.lines[2:] for each in found.values())):
        lines += [f"| {run} {row}" for run, row in zip(runs, rows, strict=True) if row is not None]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill a page in place; tells what was left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="a directory with a directory per run")
    parser.add_argument("page", type=Path)
    options = parser.parse_args(arguments)
    page, left = fill(options.page.read_text(), options.results, options.page.parent / "img")
    options.page.write_text(page)
    for source in left:
        print(f"left as it was, no results: {source}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
