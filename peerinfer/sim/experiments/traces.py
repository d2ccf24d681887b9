"""Beyond the paper: traffic that does not wait for answers, on prompts of other shapes.

Mooncake's traces (where `--data` has them), groups with shared prefixes at a rate, and chats of several
turns. Speeds are chosen so that four nodes of the paper's kind are busy and not overrun.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from peerinfer.sim.experiments.cell import Cell, WorkloadSpec
from peerinfer.sim.experiments.experiment import Experiment, Report
from peerinfer.sim.experiments.results import Results, numbers
from peerinfer.sim.experiments.settings import NO_ROUTING, Settings
from peerinfer.sim.experiments.table import Column, Table, Value, percent, seconds
from peerinfer.sim.workloads.chats import ChatsSpec
from peerinfer.sim.workloads.mooncake import MooncakeSpec
from peerinfer.sim.workloads.shared_prefix import SharedPrefixSpec

TRACE_REQUESTS = 300
"""Of Mooncake's thousands: its prompts have 10,000 tokens each."""
TRACE_CACHE_TOKENS = 262_144
OUTPUT_TOKENS_MAX = 64


def _workloads(settings: Settings) -> Iterator[tuple[str, WorkloadSpec]]:
    if settings.traces:
        requests = min(settings.requests or TRACE_REQUESTS, TRACE_REQUESTS)
        for trace in ("conversation", "synthetic"):
            spec = MooncakeSpec(
                trace=trace, speed=settings.speed, requests=requests, output_tokens_max=OUTPUT_TOKENS_MAX
            )
            yield f"Mooncake, {trace}", spec
    yield "shared prefixes", SharedPrefixSpec(requests=600, requests_per_s=4.0, output_tokens=16)
    yield "chats", ChatsSpec(chats=120, answer_tokens=32)


def _lines(settings: Settings) -> Iterator[tuple[str, str, Cell]]:
    if settings.mode != "sim":
        return
    for label, workload in _workloads(settings):
        for policy in (NO_ROUTING, *settings.policies):
            cell = settings.cell(policy, cache_tokens=TRACE_CACHE_TOKENS)
            yield label, policy, replace(cell, workload=workload)


def _cells(settings: Settings) -> list[Cell]:
    return [cell for _, _, cell in _lines(settings)]


def _report(settings: Settings, results: Results) -> Report:
    rows: list[tuple[Value, ...]] = []
    for label, policy, cell in _lines(settings):
        ours = results.summary(cell)
        names = ("latency_s", "ttft_s", "ttft_p95_s", "actual_hit", "forwarded", "hottest_share", "failed")
        rows.append((label, "no-route" if policy == NO_ROUTING else policy, *numbers(ours, *names)))
    table = Table(
        name="traces",
        title="Other workloads, open loop (Δ_comm 2 ms, Δ_poll 500 ms)",
        columns=(
            Column("Workload"),
            Column("Policy"),
            seconds("Latency (s)"),
            seconds("TTFT (s)"),
            seconds("TTFT, 95 % (s)"),
            percent("Hit rate (%)"),
            percent("Forwarded (%)"),
            percent("Hottest (%)"),
            Column("Failed", "d"),
        ),
        rows=tuple(rows),
    )
    return Report(tables=(table,) if rows else ())


TRACES = Experiment(name="traces", title="Traffic that does not wait", cells=_cells, report=_report)
