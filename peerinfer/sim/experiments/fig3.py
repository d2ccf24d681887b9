"""Figure 3: who serves a subject over time, in the paper's four configurations."""

from __future__ import annotations

from pathlib import Path

from peerinfer.sim.experiments import plot
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.experiment import Experiment, Figure, Report
from peerinfer.sim.experiments.record import Record
from peerinfer.sim.experiments.results import Results
from peerinfer.sim.experiments.settings import NO_ROUTING, Settings
from peerinfer.sim.experiments.subject_lines import draw_shares
from peerinfer.sim.experiments.windows import (
    STRIDES,
    WINDOW,
    busiest_topics,
    named_topics,
    own_window,
    subject_shares,
)

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
            title=f"Figure 3: share per node of a subject's requests, over the past {WINDOW} of them where "
            f"it has so many ({policy})",
            draw=lambda file: _draw(settings, results, policy, file),
        )

    return Report(figures=tuple(figure(policy) for policy in settings.policies))


def _draw(settings: Settings, results: Results, policy: str, file: Path) -> None:
    """A row per subject, the same ones in every configuration; a column per configuration."""
    measured = [(label, results.records(cell)) for label, cell in _configurations(settings, policy)]
    shown = [(label, records[0]) for label, records in measured if records]
    topics = named_topics(shown[0][1], settings.subjects) if shown else []
    topics = topics or busiest_topics([record for _, record in shown], SUBJECTS)
    size = (2.9 * len(measured), 2.5 * SUBJECTS + 0.4)
    with plot.canvas(file, rows=SUBJECTS, columns=max(1, len(shown)), size=size, sharey=True) as (
        figure,
        axes,
    ):
        for row, topic in enumerate(topics[:SUBJECTS]):
            for column, (label, record) in enumerate(shown):
                _panel(axes[row][column], record, topic, label)
            axes[row][0].set_ylabel(shown[0][1].topics[topic].replace("_", " "), fontweight="bold")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels) or 1)


def _panel(panel: plot.Axes, record: Record, topic: int, label: str) -> None:
    window = own_window(record, topic)
    draw_shares(panel, subject_shares(record, topic, window=window, stride=max(1, window // STRIDES)))
    panel.set_title(f"{label}\nwindows of {window}", fontsize=9)
    panel.set_xlabel("requests of the subject", fontsize=8)


FIG3 = Experiment(name="fig3", title="Who serves a subject", cells=_cells, report=_report)
