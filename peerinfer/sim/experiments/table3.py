"""Table 3: the share of the busiest node; and what page size and the common header do to it."""

from __future__ import annotations

from collections.abc import Iterator

from peerinfer.sim.experiments import paper
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.experiment import Experiment, Report
from peerinfer.sim.experiments.results import Results, numbers
from peerinfer.sim.experiments.settings import NO_ROUTING, PAPER_POLICY, Settings
from peerinfer.sim.experiments.table import Column, Table, Value, percent

FRESH = (0.02, 0.05)
"""Δ_poll and a pause between requests in which every node hears what the last one changed."""
STALE = (0.5, 0.0)
"""The paper's: each request follows the answer before it at once."""
SWEEP = tuple((poll_s, 0.0) for poll_s in paper.POLLS_S)
"""The paper's other polling periods, measured where its hotspots come from: see docs/experiments.md."""

Line = tuple[str, str, float, Cell]
"""(label, policy, the paper's share, cell)."""


def _lines(settings: Settings) -> Iterator[Line]:
    for skewed, share in paper.UNROUTED_HOTTEST.items():
        label = f"{'skewed' if skewed else 'uniform'}, no-route"
        yield label, NO_ROUTING, share, settings.cell(NO_ROUTING, skewed=skewed)
    for policy in settings.policies:
        for delay_s, share in sorted(paper.DELAY_HOTTEST.items(), reverse=True):
            yield f"Δ_comm {paper.ms(delay_s)}", policy, share, settings.cell(policy, delay_s=delay_s)
        for poll_s, share in paper.POLL_HOTTEST.items():
            yield f"Δ_poll {paper.ms(poll_s)}", policy, share, settings.cell(policy, poll_s=poll_s)
        yield "skewed", policy, paper.SKEWED_HOTTEST, settings.cell(policy, skewed=True)


def _pages(settings: Settings) -> Iterator[tuple[int, bool, str, float | None, Cell]]:
    """(page size, header, how fresh views are, the paper's share, cell)."""
    fewer = min(settings.requests or settings.page_requests, settings.page_requests)
    for page_size, header in ((1, True), (1, False), (16, True), (16, False)):
        papers = (page_size, header) == (1, True)
        for poll_s, pause_s in (FRESH, STALE, *(SWEEP if papers else ())):
            cell = settings.cell(
                PAPER_POLICY, poll_s=poll_s, pause_s=pause_s, page_size=page_size, header=header
            )
            share = paper.POLL_HOTTEST.get(poll_s, paper.DELAY_HOTTEST[0.002])
            label = f"Δ_poll {paper.ms(poll_s)}"
            if pause_s:
                label += f", {paper.ms(pause_s)} between requests"
            yield page_size, header, label, share if papers and not pause_s else None, cell.shortened(fewer)


def _cells(settings: Settings) -> list[Cell]:
    return [cell for *_, cell in _lines(settings)] + [cell for *_, cell in _pages(settings)]


def _report(settings: Settings, results: Results) -> Report:
    return Report(tables=(_hotspots(settings, results), _page_sizes(settings, results)))


def _hotspots(settings: Settings, results: Results) -> Table:
    rows: list[tuple[Value, ...]] = []
    for label, policy, share, cell in _lines(settings):
        ours = results.summary(cell)
        rows.append((label, policy, share, *numbers(ours, "hottest_share", "actual_hit")))
    return Table(
        name="table3",
        title="Table 3: share of requests served by the busiest node",
        columns=(
            Column("Configuration"),
            Column("Policy"),
            percent("Paper (%)"),
            percent("Ours (%)"),
            percent("Ours: hit rate (%)"),
        ),
        rows=tuple(rows),
        notes=("Without an entry, Δ_comm is 2 ms and Δ_poll 500 ms.",),
    )


def _page_sizes(settings: Settings, results: Results) -> Table:
    rows: list[tuple[Value, ...]] = []
    for page_size, header, label, share, cell in _pages(settings):
        ours = results.summary(cell)
        rows.append(
            (
                page_size,
                "with" if header else "without",
                label,
                share,
                *numbers(ours, "hottest_share", "actual_hit", "requests"),
            )
        )
    return Table(
        name="table3_pages",
        title="Page size and MMLU's common header under the paper's rule",
        columns=(
            Column("Page size", "d"),
            Column("Header"),
            Column("Views"),
            percent("Paper: hottest (%)"),
            percent("Hottest share (%)"),
            percent("Hit rate (%)"),
            Column("Requests", "d"),
        ),
        rows=tuple(rows),
    )


TABLE3 = Experiment(name="table3", title="Hotspots", cells=_cells, report=_report)
