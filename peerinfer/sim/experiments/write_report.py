"""Writes what experiments found: Markdown for people, CSV and JSON for programs, PNG for the eye."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from peerinfer.sim.experiments import plot
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.experiment import Experiment, Report
from peerinfer.sim.experiments.record import Record

NO_FIGURES = 'Figures need matplotlib: pip install "peerinfer[experiments]".'


def run_digest(records: Mapping[Cell, Record]) -> str:
    """Of all that was measured: the same command gives the same one."""
    return _digest(record.digest for record in records.values())


def _digest(digests: Iterable[str]) -> str:
    return hashlib.blake2b("".join(sorted(digests)).encode(), digest_size=10).hexdigest()


def extent(records: Collection[Record]) -> str:
    """How much stands behind a report, in a line."""
    if not records:
        return "Nothing was measured."
    sizes = sorted({len(record.rows) for record in records})
    requests = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    digest = _digest(record.digest for record in records)
    return f"{len(records)} measurements of {requests} requests; digest {digest}."


def write_report(
    out: Path, experiment: Experiment, report: Report, *, measured: str, notes: Iterable[str] = ()
) -> str:
    """Write one experiment's files below `out`; returns its Markdown."""
    out.mkdir(parents=True, exist_ok=True)
    parts = [f"## {experiment.name}: {experiment.title}\n"]
    parts += [f"{note}\n" for note in notes]
    for table in report.tables:
        (out / f"{table.name}.csv").write_text(table.csv())
        parts.append(table.markdown())
    for figure in report.figures:
        if plot.can_draw():
            figure.draw(out / f"{figure.name}.png")
            parts.append(f"### {figure.title}\n\n![{figure.title}]({figure.name}.png)\n")
    if report.figures and not plot.can_draw():
        parts.append(f"{NO_FIGURES}\n")
    parts.append(f"{measured}\n")
    data = {
        "measured": measured,
        "tables": {table.name: table.as_json() for table in report.tables},
        "figures": {figure.name: figure.title for figure in report.figures},
    }
    (out / f"{experiment.name}.json").write_text(json.dumps(data, indent=1) + "\n")
    text = "\n".join(parts)
    (out / f"{experiment.name}.md").write_text(text)
    return text
