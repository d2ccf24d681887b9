"""Figure 3: who serves a subject over time, in the paper's four configurations."""

from __future__ import annotations

from pathlib import Path

from peerinfer.sim.experiments import plot
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.experiment import Experiment, Figure, Report
from peerinfer.sim.experiments.results import Results
from peerinfer.sim.experiments.settings import NO_ROUTING, Settings
from peerinfer.sim.experiments.subject_lines import chosen_topics, draw_shares
from peerinfer.sim.experiments.windows import STRIDE, WINDOW, subject_shares

SLOW_POLL_S = 300.0  # paper figure 3
SUBJECTS = 2  # paper figure 3


def _configurations(settings: Settings, policy: str) -> list[tuple[str, Cell]]:
    return [
        ("skewed, routed", settings.cell(policy, skewed=True)),
        ("uniform, routed", settings.cell(policy)),
        ("uniform, no routing", settings.cell(NO_ROUTING)),
        ("uniform, Δ_poll 300 s", settings.cell(policy, poll_s=SLOW_POLL_S)),
    ]


def _cells(settings: Settings) -> list[Cell]:
    return [cell for policy in settings.policies for _, cell in _configurations(settings, policy)]


def _report(settings: Settings, results: Results) -> Report:
    def figure(policy: str) -> Figure:
        return Figure(
            name=f"fig3_{policy}",
            title=f"Figure 3: share per node of a subject's requests, windows of {WINDOW}, stride {STRIDE} "
            f"({policy})",
            draw=lambda file: _draw(settings, results, policy, file),
        )

    return Report(figures=tuple(figure(policy) for policy in settings.policies))


def _draw(settings: Settings, results: Results, policy: str, file: Path) -> None:
    configurations = _configurations(settings, policy)
    with plot.canvas(file, rows=SUBJECTS, columns=len(configurations), size=(11.5, 4.6), sharey=True) as (
        _,
        axes,
    ):
        for column, (label, cell) in enumerate(configurations):
            records = results.records(cell)
            topics = chosen_topics(records[0], settings.subjects, SUBJECTS) if records else []
            for row in range(SUBJECTS):
                panel = axes[row][column]
                if row >= len(topics):
                    panel.set_axis_off()
                    continue
                draw_shares(panel, subject_shares(records[0], topics[row]))
                panel.set_title(label, fontsize=9)
                panel.set_xlabel(f"requests of {records[0].topics[topics[row]]}", fontsize=8)
        axes[0][0].set_ylabel("share of requests")
        axes[1][0].set_ylabel("share of requests")
        axes[0][-1].legend(loc="upper right", fontsize=7)


FIG3 = Experiment(name="fig3", title="Who serves a subject", cells=_cells, report=_report)
