"""How long a request of one cell takes against those of others: what an honest time left is made of."""

from __future__ import annotations

from peerinfer.sim.experiments.cell import Cell, WorkloadSpec
from peerinfer.sim.workloads.mooncake import MooncakeSpec
from peerinfer.sim.workloads.shared_prefix import SharedPrefixSpec

MS_PER_PAGE = 0.09  # measured: 1,000 requests of MMLU, 4.5 s at pages of 16 tokens and 61 s at pages of one
MS_S_PER_ROUND = 0.5  # measured: 300 requests, 9 s with rounds every 20 ms
MMLU_TOKENS = 720
MOONCAKE_TOKENS = 10_000


def effort(cell: Cell) -> int:
    """Of each request, in about milliseconds of one core; real nodes take the same for all of a workload."""
    pages = prompt_tokens(cell.workload) / cell.page_size
    rounds = MS_S_PER_ROUND / cell.poll_interval_s
    return max(1, round(MS_PER_PAGE * pages + rounds))


def prompt_tokens(workload: WorkloadSpec) -> int:
    """About how long a prompt is."""
    if isinstance(workload, SharedPrefixSpec):
        return workload.prefix_tokens + workload.ending_tokens
    return MOONCAKE_TOKENS if isinstance(workload, MooncakeSpec) else MMLU_TOKENS
