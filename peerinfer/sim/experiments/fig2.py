"""Figure 2: mean latency over Δ_comm, with routing and without, and what it is made of."""

from __future__ import annotations

from pathlib import Path

from peerinfer.sim.experiments import paper, plot
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.experiment import Experiment, Figure, Report
from peerinfer.sim.experiments.results import Results
from peerinfer.sim.experiments.settings import NO_ROUTING, Settings
from peerinfer.sim.experiments.summary import Summary

DELAYS_S = (0.002, 0.05, 0.2, 0.5, 1.0)
"""The paper's three, and some between."""
PARTS = ("engine_s", "processing_s", "network_s")
"""Of a latency; trees are too small to be seen."""


def _delays(settings: Settings) -> tuple[float, ...]:
    return DELAYS_S if settings.mode == "sim" else paper.DELAYS_S


def _cells(settings: Settings) -> list[Cell]:
    routed = [
        settings.cell(policy, delay_s=delay_s)
        for policy in settings.policies
        for delay_s in _delays(settings)
    ]
    return [settings.cell(NO_ROUTING), *routed]


def _report(settings: Settings, results: Results) -> Report:
    def draw(file: Path) -> None:
        _draw(settings, results, file)

    return Report(figures=(Figure(name="fig2", title="Figure 2: mean latency over Δ_comm", draw=draw),))


def _draw(settings: Settings, results: Results, file: Path) -> None:
    with plot.canvas(file, columns=2, size=(9.2, 3.4)) as (_, axes):
        _draw_latencies(axes[0][0], settings, results)
        _draw_parts(axes[0][1], settings, results)


def _draw_latencies(axes: plot.Axes, settings: Settings, results: Results) -> None:
    alone = results.summary(settings.cell(NO_ROUTING))
    if alone is not None:
        axes.axhline(alone.latency_s, color=plot.GREY, linestyle="--", label="no routing")
    for policy, colour in zip(settings.policies, plot.COLOURS, strict=False):
        points = _points(settings, results, policy)
        axes.plot(
            [delay_s for delay_s, _ in points],
            [summary.latency_s for _, summary in points],
            marker="o",
            markersize=4,
            color=colour,
            label=policy,
        )
    shown = sorted(paper.ROUTED_LATENCY_S.items())
    axes.plot(*zip(*shown, strict=True), "x", color="#222222", markersize=7, label="paper, routed")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set(xlabel="Δ_comm, one way (s)", ylabel="mean latency (s)", title="Latency")
    axes.legend()


def _draw_parts(axes: plot.Axes, settings: Settings, results: Results) -> None:
    """Bars by Δ_comm, a group per policy."""
    delays = _delays(settings)
    width = 0.8 / max(1, len(settings.policies))
    for index, policy in enumerate(settings.policies):
        points = dict(_points(settings, results, policy))
        for place, delay_s in enumerate(delays):
            bottom = 0.0
            for part, colour in zip(PARTS, plot.COLOURS, strict=False):
                value = getattr(points[delay_s], part) if delay_s in points else 0.0
                at = place - 0.4 + (index + 0.5) * width
                axes.bar(at, value, width * 0.9, bottom=bottom, color=colour, alpha=1.0 - 0.35 * (index % 2))
                bottom += value
    axes.set_xticks(range(len(delays)), [paper.ms(delay_s) for delay_s in delays])
    for part, colour in zip(PARTS, plot.COLOURS, strict=False):
        axes.bar(0, 0, color=colour, label=part.removesuffix("_s"))
    bars = " | ".join(settings.policies)
    axes.set(xlabel=f"Δ_comm (bars: {bars})", title="Where the time goes")
    axes.legend()


def _points(settings: Settings, results: Results, policy: str) -> list[tuple[float, Summary]]:
    points = [
        (delay_s, results.summary(settings.cell(policy, delay_s=delay_s))) for delay_s in _delays(settings)
    ]
    return [(delay_s, summary) for delay_s, summary in points if summary is not None]


FIG2 = Experiment(name="fig2", title="Latency over Δ_comm", cells=_cells, report=_report)
