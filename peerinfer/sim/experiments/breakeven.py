"""Where forwarding starts to pay, over Δ_comm × prompt length × model speed.

Groups of prompts that share a prefix, few enough requests per group that a prefix is still new to most
nodes. The simple model beside it (paper §5): one forward pays where the prefill that it saves, prompt ÷
rate, exceeds its round trip, 2 Δ_comm. A whole workload breaks even earlier, since most requests find their
prefix here as well, and are forwarded all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log
from pathlib import Path

from peerinfer.sim.experiments import plot
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.experiment import Experiment, Figure, Report
from peerinfer.sim.experiments.results import Results
from peerinfer.sim.experiments.settings import NO_ROUTING, Settings
from peerinfer.sim.experiments.table import Column, Table, Value, seconds
from peerinfer.sim.workloads.shared_prefix import SharedPrefixSpec

LENGTHS = (512, 2048, 8192)
"""Tokens of a shared prefix."""
SPEEDS = (1, 8)
"""Times the calibration's prefill rate: a faster GPU, or a smaller model."""
DELAYS_S = (0.002, 0.02, 0.1, 0.5, 2.0)
REQUESTS = 120
GROUPS = 6
ENDING_TOKENS = 64


def _cell(settings: Settings, policy: str, length: int, speed: int, delay_s: float) -> Cell:
    rate = settings.calibration.prefill_tokens_per_s * speed
    name = f"{settings.calibration.name} × {speed}"
    return replace(
        settings.cell(policy, delay_s=delay_s, cache_tokens=GROUPS * (LENGTHS[-1] + 100 * ENDING_TOKENS)),
        workload=SharedPrefixSpec(
            requests=REQUESTS,
            groups=GROUPS,
            prompts=REQUESTS,
            prefix_tokens=length,
            ending_tokens=ENDING_TOKENS,
            zipf=0.0,
        ),
        calibration=replace(settings.calibration, name=name, prefill_tokens_per_s=rate),
    )


def _grid() -> Iterator[tuple[int, int]]:
    for length in LENGTHS:
        for speed in SPEEDS:
            yield length, speed


def _cells(settings: Settings) -> list[Cell]:
    if settings.mode != "sim":
        return []
    cells = [_cell(settings, NO_ROUTING, length, speed, DELAYS_S[0]) for length, speed in _grid()]
    for policy in settings.policies:
        for length, speed in _grid():
            cells += [_cell(settings, policy, length, speed, delay_s) for delay_s in DELAYS_S]
    return cells


def crossing(gaps: Sequence[tuple[float, float]]) -> float | None:
    """The Δ_comm at which the gap to no routing turns positive; None if it never does.

    Linear in the gap and in the delay's logarithm between two measured delays.
    """
    if gaps and gaps[0][1] > 0:
        return gaps[0][0]
    for (delay_s, gap), (next_s, next_gap) in pairwise(gaps):
        if gap <= 0 < next_gap:
            share = -gap / (next_gap - gap)
            return exp(log(delay_s) + share * (log(next_s) - log(delay_s)))
    return None


def _gaps(
    settings: Settings, results: Results, policy: str, length: int, speed: int
) -> list[tuple[float, float]]:
    alone = results.summary(_cell(settings, NO_ROUTING, length, speed, DELAYS_S[0]))
    points = [
        (delay_s, results.summary(_cell(settings, policy, length, speed, delay_s))) for delay_s in DELAYS_S
    ]
    if alone is None:
        return []
    return [(delay_s, ours.latency_s - alone.latency_s) for delay_s, ours in points if ours is not None]


def _report(settings: Settings, results: Results) -> Report:
    if settings.mode != "sim":
        return Report()
    rows: list[tuple[Value, ...]] = []
    for policy in settings.policies:
        for length, speed in _grid():
            gaps = _gaps(settings, results, policy, length, speed)
            rate = settings.calibration.prefill_tokens_per_s * speed
            best, worst = min(gap for _, gap in gaps), max(gap for _, gap in gaps)
            at = crossing(gaps)
            rows.append((policy, length, rate, length / rate / 2, at, best, worst))
    table = Table(
        name="breakeven",
        title="Break-even: the Δ_comm below which routing wins",
        columns=(
            Column("Policy"),
            Column("Shared prefix (tokens)", "d"),
            Column("Prefill (tokens/s)", ".0f"),
            seconds("One forward: prefix ÷ rate ÷ 2 (s)"),
            seconds("Workload: break-even Δ_comm (s)"),
            Column("Best gap (s)", "+.3f"),
            Column("Worst gap (s)", "+.3f"),
        ),
        rows=tuple(rows),
        notes=(
            f"{REQUESTS} requests, {GROUPS} prefixes, Δ_comm from {DELAYS_S[0] * 1000:g} ms to "
            f"{DELAYS_S[-1]:g} s. A dash: no delay in that range makes it lose.",
        ),
    )

    def draw(file: Path) -> None:
        _draw(settings, results, file)

    figure = Figure(name="breakeven", title="What routing saves or costs over Δ_comm", draw=draw)
    return Report(tables=(table,), figures=(figure,))


def _draw(settings: Settings, results: Results, file: Path) -> None:
    """A panel per prefix length, a colour per speed, a line style per policy; saved share of the latency."""
    with plot.canvas(file, columns=len(LENGTHS), size=(10.5, 3.4), sharey=True) as (_, axes):
        for panel, length in zip(axes[0], LENGTHS, strict=True):
            panel.axhline(0, color=plot.GREY, linewidth=1)
            for speed, colour in zip(SPEEDS, plot.COLOURS, strict=False):
                alone = results.summary(_cell(settings, NO_ROUTING, length, speed, DELAYS_S[0]))
                if alone is None:
                    continue
                for policy, style in zip(settings.policies, ("-", "--", ":"), strict=False):
                    gaps = _gaps(settings, results, policy, length, speed)
                    rate = settings.calibration.prefill_tokens_per_s * speed
                    panel.plot(
                        [delay_s for delay_s, _ in gaps],
                        [gap / alone.latency_s for _, gap in gaps],
                        style,
                        color=colour,
                        label=f"{rate:,.0f} tokens/s, {policy}",
                    )
            panel.set_xscale("log")
            panel.set_ylim(-0.6, 1.0)
            panel.set(title=f"{length} shared tokens", xlabel="Δ_comm, one way (s)")
        axes[0][0].set_ylabel("latency against no routing")
        axes[0][0].yaxis.set_major_formatter(lambda value, _: f"{value:+.0%}")
        axes[0][-1].legend(fontsize=6.5, loc="upper left")


BREAKEVEN = Experiment(name="breakeven", title="Where forwarding starts to pay", cells=_cells, report=_report)
