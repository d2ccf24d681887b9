"""Table 2: how much of the prompts the entry node expected to be cached, and how much was."""

from __future__ import annotations

from collections.abc import Iterator

from peerinfer.sim.experiments import paper
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.experiment import Experiment, Report
from peerinfer.sim.experiments.results import Results, numbers
from peerinfer.sim.experiments.settings import NO_ROUTING, Settings
from peerinfer.sim.experiments.table import Column, Table, Value, percent, seconds

LATENCY_S = {
    (False, False): paper.UNROUTED_LATENCY_S,
    (False, True): paper.ROUTED_LATENCY_S[0.002],
    (True, False): paper.SKEWED_UNROUTED_LATENCY_S,
    (True, True): paper.SKEWED_ROUTED_LATENCY_S,
}


def _lines(settings: Settings) -> Iterator[tuple[bool, str, Cell]]:
    """(skewed, policy, cell)."""
    for skewed in (False, True):
        for policy in (NO_ROUTING, *settings.policies):
            yield skewed, policy, settings.cell(policy, skewed=skewed)


def _cells(settings: Settings) -> list[Cell]:
    return [cell for _, _, cell in _lines(settings)]


def _report(settings: Settings, results: Results) -> Report:
    return Report(tables=(_hits(settings, results), _served(settings, results)))


def _hits(settings: Settings, results: Results) -> Table:
    rows: list[tuple[Value, ...]] = []
    for skewed, policy, cell in _lines(settings):
        key = (skewed, policy != NO_ROUTING)
        ours = results.summary(cell)
        rows.append(
            (
                *_labels(skewed, policy),
                *paper.HITS[key],
                LATENCY_S[key],
                *numbers(ours, "expected_hit", "actual_hit", "latency_s"),
            )
        )
    return Table(
        name="table2",
        title="Table 2: expected and actual cache hit rate (Δ_comm 2 ms, Δ_poll 500 ms)",
        columns=(
            Column("Workload"),
            Column("Policy"),
            percent("Paper: expected (%)"),
            percent("Paper: actual (%)"),
            seconds("Paper: latency (s)"),
            percent("Ours: expected (%)"),
            percent("Ours: actual (%)"),
            seconds("Ours: latency (s)"),
        ),
        rows=tuple(rows),
    )


def _served(settings: Settings, results: Results) -> Table:
    """The same runs in the numbers in which real nodes are held against simulated ones."""
    names = ("requests", "failed", "actual_hit", "forwarded", "hottest_share", "latency_s")
    rows = [
        (*_labels(skewed, policy), *numbers(results.summary(cell), *names))
        for skewed, policy, cell in _lines(settings)
    ]
    return Table(
        name="table2_served",
        title="Who served, in the runs of table 2",
        columns=(
            Column("Workload"),
            Column("Policy"),
            Column("Requests", "d"),
            Column("Failed", "d"),
            percent("Hit rate (%)"),
            percent("Forwarded (%)"),
            percent("Hottest (%)"),
            seconds("Latency (s)"),
        ),
        rows=tuple(rows),
    )


def _labels(skewed: bool, policy: str) -> tuple[str, str]:
    return "skewed" if skewed else "uniform", "no-route" if policy == NO_ROUTING else policy


TABLE2 = Experiment(name="table2", title="Expected and actual hit rate", cells=_cells, report=_report)
