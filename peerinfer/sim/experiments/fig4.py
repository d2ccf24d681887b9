"""Figure 4: the specialization-eviction cycle of two subjects, and the zones that it goes through.

The subjects are those that go through most zones, most often, at every Δ_comm; the window is the paper's, or
the largest below it in which a subject still shows all three zones: what happens within fewer requests than a
window has cannot be seen in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from peerinfer.sim.experiments import paper, plot
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.experiment import Experiment, Figure, Report
from peerinfer.sim.experiments.record import Record
from peerinfer.sim.experiments.results import Results
from peerinfer.sim.experiments.settings import PAPER_POLICY, Settings
from peerinfer.sim.experiments.subject_lines import draw_shares, shade_zones, zone_patches
from peerinfer.sim.experiments.table import Column, Table, Value
from peerinfer.sim.experiments.windows import (
    STRIDES,
    WINDOW,
    Share,
    cycling_topics,
    named_topics,
    subject_shares,
    zones,
)

DELAYS_S = (0.2, 0.5)  # paper figure 4 has 200 ms
POLL_S = 0.5  # paper figure 4
SUBJECTS = 2  # paper figure 4
WINDOWS = (WINDOW, 100, 30)
"""The paper's, and what is tried below it."""
ZONES = 3
SHOWN = 8
"""Subjects in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycles:
    """What is shown."""

    records: tuple[tuple[float, Record], ...]
    """By Δ_comm."""
    window: int
    topics: tuple[int, ...]
    """Those that cycle most first, or those that the user named."""

    def shares(self, record: Record, topic: int) -> list[Share]:
        """A subject's windows."""
        return subject_shares(record, topic, window=self.window, stride=self.window // STRIDES)

    def path(self, record: Record, topic: int) -> list[int]:
        """The zones that a subject goes through."""
        return [zone for zone, _ in groupby(zones(self.shares(record, topic)))]


def _cell(settings: Settings, delay_s: float) -> Cell:
    return settings.cell(
        PAPER_POLICY, delay_s=delay_s, poll_s=POLL_S, cache_tokens=settings.eviction_cache_tokens
    )


def _cells(settings: Settings) -> list[Cell]:
    return [_cell(settings, delay_s) for delay_s in DELAYS_S]


def _cycles(settings: Settings, results: Results) -> Cycles | None:
    measured = [(delay_s, results.records(_cell(settings, delay_s))) for delay_s in DELAYS_S]
    shown = tuple((delay_s, records[0]) for delay_s, records in measured if records)
    if not shown:
        return None
    named = tuple(named_topics(shown[0][1], settings.subjects))
    for window in WINDOWS:
        cycling = cycling_topics([record for _, record in shown], window=window, stride=window // STRIDES)
        cycles = Cycles(records=shown, window=window, topics=named or tuple(cycling))
        paths = [[cycles.path(record, topic) for _, record in shown] for topic in cycles.topics[:SUBJECTS]]
        if paths and all(len(set(path)) == ZONES for each in paths for path in each):
            break
    return cycles


def _report(settings: Settings, results: Results) -> Report:
    cycles = _cycles(settings, results)
    if cycles is None:
        return Report()

    def draw(file: Path) -> None:
        _draw(cycles, file)

    title = f"Figure 4: the specialization-eviction cycle (Δ_poll {paper.ms(POLL_S)})"
    figures = (Figure(name="fig4", title=title, draw=draw),) if cycles.topics else ()
    return Report(tables=(_table(settings, cycles),), figures=figures)


def _table(settings: Settings, cycles: Cycles) -> Table:
    rows: list[tuple[Value, ...]] = []
    for topic in cycles.topics[:SHOWN]:
        row: list[Value] = [cycles.records[0][1].topics[topic]]
        for _, record in cycles.records:
            shares = cycles.shares(record, topic)
            row += [shares[-1].requests if shares else 0, _arrows(cycles.path(record, topic))]
        rows.append(tuple(row))
    columns = [Column("Subject")]
    for delay_s, _ in cycles.records:
        columns += [Column(f"Requests, {paper.ms(delay_s)}", "d"), Column(f"Zones, {paper.ms(delay_s)}")]
    return Table(
        name="fig4",
        title="Figure 4: zones that subjects go through",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(
            f"1 competitive, 2 specialised, 3 evicted; windows of {cycles.window}, stride "
            f"{cycles.window // STRIDES}; {settings.eviction_cache_tokens} tokens of cache per node. "
            "Those that go through most zones, most often, are shown.",
        ),
    )


def _arrows(path: Sequence[int]) -> str:
    return " → ".join(map(str, path))


def _draw(cycles: Cycles, file: Path) -> None:
    """A row per Δ_comm, a column per subject."""
    topics = cycles.topics[:SUBJECTS]
    rows = len(cycles.records)
    size = (5.2 * len(topics), 2.6 * rows + 0.5)
    with plot.canvas(file, rows=rows, columns=len(topics), size=size, sharey=True) as (figure, axes):
        for row, (delay_s, record) in enumerate(cycles.records):
            for column, topic in enumerate(topics):
                panel, shares = axes[row][column], cycles.shares(record, topic)
                shade_zones(panel, shares)
                draw_shares(panel, shares)
                name = record.topics[topic].replace("_", " ")
                panel.set_title(f"{name}, windows of {cycles.window}")
                panel.set_xlabel("requests of the subject", fontsize=8)
            axes[row][0].set_ylabel(f"Δ_comm {paper.ms(delay_s)}", fontweight="bold")
        handles, _ = axes[0][0].get_legend_handles_labels()
        handles = [*handles, *zone_patches()]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


FIG4 = Experiment(name="fig4", title="The specialization-eviction cycle", cells=_cells, report=_report)
