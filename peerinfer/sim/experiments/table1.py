"""Table 1: mean latency over Δ_comm, uniform and skewed, each beside its run without routing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peerinfer.sim.experiments import paper
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.experiment import Experiment, Report
from peerinfer.sim.experiments.results import Results, numbers
from peerinfer.sim.experiments.settings import NO_ROUTING, Settings
from peerinfer.sim.experiments.table import Column, Table, Value, percent, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the paper's table."""

    label: str
    delay_s: float
    skewed: bool
    paper_routed_s: float
    paper_unrouted_s: float


LINES = (
    *(
        Line(
            label=f"uniform, {paper.ms(delay_s)}",
            delay_s=delay_s,
            skewed=False,
            paper_routed_s=paper.ROUTED_LATENCY_S[delay_s],
            paper_unrouted_s=paper.UNROUTED_LATENCY_S,
        )
        for delay_s in paper.DELAYS_S
    ),
    Line(
        label="skewed, 2 ms",
        delay_s=0.002,
        skewed=True,
        paper_routed_s=paper.SKEWED_ROUTED_LATENCY_S,
        paper_unrouted_s=paper.SKEWED_UNROUTED_LATENCY_S,
    ),
)


def _pairs(settings: Settings) -> Iterator[tuple[Line, str, Cell, Cell]]:
    """(line, policy, routed, not routed)."""
    for policy in settings.policies:
        for line in LINES:
            routed = settings.cell(policy, delay_s=line.delay_s, skewed=line.skewed)
            yield line, policy, routed, settings.cell(NO_ROUTING, skewed=line.skewed)


def _cells(settings: Settings) -> list[Cell]:
    return [cell for _, _, *both in _pairs(settings) for cell in both]


def _report(settings: Settings, results: Results) -> Report:
    return Report(tables=(_latencies(settings, results), _split(settings, results)))


def _latencies(settings: Settings, results: Results) -> Table:
    rows: list[tuple[Value, ...]] = []
    for line, policy, routed, unrouted in _pairs(settings):
        ours, alone = results.summary(routed), results.summary(unrouted)
        rows.append(
            (
                line.label,
                policy,
                line.paper_routed_s,
                line.paper_unrouted_s,
                line.paper_routed_s - line.paper_unrouted_s,
                *numbers(ours, "latency_s"),
                *numbers(alone, "latency_s"),
                None if ours is None or alone is None else ours.latency_s - alone.latency_s,
                *numbers(ours, "forwarded"),
                *(numbers(ours, "latency_spread_s") if settings.seeds > 1 else (None,)),
            )
        )
    return Table(
        name="table1",
        title="Table 1: mean latency per request",
        columns=(
            Column("Workload, Δ_comm"),
            Column("Policy"),
            seconds("Paper: routed (s)"),
            seconds("Paper: no-route (s)"),
            Column("Paper: gap (s)", "+.3f"),
            seconds("Ours: routed (s)"),
            seconds("Ours: no-route (s)"),
            Column("Ours: gap (s)", "+.3f"),
            percent("Forwarded (%)"),
            seconds("± between seeds (s)"),
        ),
        rows=tuple(rows),
    )


def _split(settings: Settings, results: Results) -> Table:
    """Latency in the paper's four parts (§5)."""
    seen: dict[Cell, str] = {}
    for line, _, routed, unrouted in _pairs(settings):
        seen.setdefault(unrouted, "skewed" if line.skewed else "uniform")
        seen.setdefault(routed, line.label)
    rows: list[tuple[Value, ...]] = []
    for cell, label in seen.items():
        if ours := results.summary(cell):
            parts = (ours.engine_s, ours.trees_s, ours.processing_s, ours.network_s)
            rows.append((label, cell.policy, ours.latency_s, *parts))
    return Table(
        name="table1_split",
        title="Where the time goes",
        columns=(
            Column("Workload, Δ_comm"),
            Column("Policy"),
            seconds("Latency (s)"),
            seconds("Engine (s)"),
            Column("Trees (s)", ".5f"),
            Column("Processing (s)", ".4f"),
            seconds("Network (s)"),
        ),
        rows=tuple(rows),
    )


TABLE1 = Experiment(name="table1", title="Mean latency over Δ_comm", cells=_cells, report=_report)
