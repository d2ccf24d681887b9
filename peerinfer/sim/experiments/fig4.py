"""Figure 4: the specialization-eviction cycle of two subjects, and the zones that it goes through."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from peerinfer.sim.experiments import plot
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.experiment import Experiment, Figure, Report
from peerinfer.sim.experiments.results import Results
from peerinfer.sim.experiments.settings import PAPER_POLICY, Settings
from peerinfer.sim.experiments.subject_lines import draw_shares, named_topics
from peerinfer.sim.experiments.table import Column, Table, Value
from peerinfer.sim.experiments.windows import Share, cycling_topics, subject_shares, zones

DELAY_S = 0.2  # paper figure 4
POLL_S = 0.5  # paper figure 4
SUBJECTS = 2  # paper figure 4
FINE_WINDOW = 30
FINE_STRIDE = 3
"""Ten times finer than the paper's, as the lower row: a window of 300 hides a cycle of 50 requests."""
SHOWN = 8
"""Lines of the table."""


def _cell(settings: Settings) -> Cell:
    return settings.cell(
        PAPER_POLICY, delay_s=DELAY_S, poll_s=POLL_S, cache_tokens=settings.eviction_cache_tokens
    )


def _report(settings: Settings, results: Results) -> Report:
    records = results.records(_cell(settings))
    if not records:
        return Report()
    record = records[0]
    cycling = cycling_topics(record, len(record.topics), window=FINE_WINDOW, stride=FINE_STRIDE)
    topics = named_topics(record, settings.subjects)[:SUBJECTS] or cycling[:SUBJECTS]
    rows: list[tuple[Value, ...]] = []
    for topic in topics if settings.subjects else cycling[:SHOWN]:
        fine = subject_shares(record, topic, window=FINE_WINDOW, stride=FINE_STRIDE)
        changes = [zone for zone, _ in groupby(zones(fine))]
        top = max((share.top for share in fine), default=0.0)
        rows.append((record.topics[topic], " → ".join(map(str, changes)), top))
    table = Table(
        name="fig4",
        title="Figure 4: zones that subjects go through",
        columns=(Column("Subject"), Column("Zones"), Column("Highest share (%)", ".0f", 100.0)),
        rows=tuple(rows),
        notes=(
            f"1 competitive, 2 specialised, 3 evicted; windows of {FINE_WINDOW}; "
            f"{settings.eviction_cache_tokens} tokens of cache per node. Those that change most are shown.",
        ),
    )

    def draw(file: Path) -> None:
        with plot.canvas(file, rows=2, columns=len(topics), size=(9.2, 5.0), sharey=True) as (_, axes):
            for column, topic in enumerate(topics):
                name = record.topics[topic]
                coarse = subject_shares(record, topic)
                fine = subject_shares(record, topic, window=FINE_WINDOW, stride=FINE_STRIDE)
                for panel, shares in ((axes[0][column], coarse), (axes[1][column], fine)):
                    _shade(panel, shares)
                    draw_shares(panel, shares)
                axes[0][column].set_title(name.replace("_", " "))
                axes[1][column].set_xlabel("requests of this subject")
            axes[0][0].set_ylabel("share, windows of 300")
            axes[1][0].set_ylabel(f"share, windows of {FINE_WINDOW}")
            axes[0][-1].legend(loc="upper right", fontsize=7)

    title = "Figure 4: the specialization-eviction cycle (Δ_comm 200 ms, Δ_poll 500 ms)"
    return Report(tables=(table,), figures=(Figure(name="fig4", title=title, draw=draw),))


def _shade(panel: plot.Axes, shares: list[Share]) -> None:
    """The zones as a background."""
    begin = 0
    for share, zone in zip(shares, zones(shares), strict=True):
        panel.axvspan(begin, share.requests, color=plot.ZONES[zone], linewidth=0, zorder=0)
        begin = share.requests


FIG4 = Experiment(
    name="fig4",
    title="The specialization-eviction cycle",
    cells=lambda settings: [_cell(settings)],
    report=_report,
)
