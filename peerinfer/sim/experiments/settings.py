"""What a user chose for a run of experiments, and the configurations that tables and figures share.

Experiments that need the same cell get the same cell, so it is measured once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from peerinfer.sim.experiments.calibration import PAPER, Calibration
from peerinfer.sim.experiments.cell import Cell, Mode
from peerinfer.sim.experiments.paper import ms
from peerinfer.sim.workloads.entries import Entry
from peerinfer.sim.workloads.mmlu import MmluSpec

PAPER_POLICY = "longest-prefix"
NO_ROUTING = "local"
REAL_POLLS_S = (0.5, 2.0)
"""What real nodes can poll at: py-libp2p cannot do 20 ms, and nobody wants to wait for 300 s rounds."""
REAL_PAGE_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of `peerinfer experiment`."""

    policies: tuple[str, ...] = (PAPER_POLICY, "cost")
    mode: Mode = "sim"
    nodes: int = 4  # paper §4
    page_size: int = 16
    header: bool = True
    seeds: int = 1
    requests: int | None = None
    page_requests: int = 400
    """Of the page-size table: pages of one token make sixteen times the work, and its shape is there soon."""
    entry: Entry = "round-robin"
    subjects: tuple[str, ...] = ()
    """Of figures 3 and 4; those with the most requests if none is named."""
    subjects_max: int | None = None
    """So many subjects of MMLU at most: real engines compute each prefix for real."""
    cache_tokens: int = 65_536
    eviction_cache_tokens: int = 8192
    """For figure 4: all four nodes together hold hardly more than the prefixes of all subjects."""
    calibration: Calibration = PAPER
    traces: bool = False
    """Whether Mooncake's traces are there."""
    speed: float = 0.04
    """How many times as fast as they came Mooncake's requests come; theirs was a cluster of large GPUs."""

    def cell(
        self,
        policy: str,
        *,
        delay_s: float = 0.002,
        poll_s: float = 0.5,
        pause_s: float = 0.0,
        skewed: bool = False,
        page_size: int | None = None,
        header: bool | None = None,
        cache_tokens: int | None = None,
    ) -> Cell:
        """One configuration; the defaults are the paper's Δ_comm and Δ_poll and this run's options."""
        if policy == NO_ROUTING:
            delay_s, poll_s = 0.002, 0.5  # without routing neither matters: one measurement serves all
        return Cell(
            workload=MmluSpec(
                nodes=self.nodes,
                requests=self.requests,
                skewed=skewed,
                header=self.header if header is None else header,
                entry=self.entry,
                subjects=self.subjects_max,
            ),
            mode=self.mode,
            policy=policy,
            network_delay_s=delay_s,
            poll_interval_s=poll_s,
            pause_s=pause_s,
            page_size=page_size or self.page_size,
            cache_tokens=cache_tokens or self.cache_tokens,
            calibration=self.calibration,
        )

    def seeded(self, cell: Cell) -> list[Cell]:
        """A configuration with each of the seeds."""
        return [cell.seeded(seed) for seed in range(self.seeds)]


def possible(cell: Cell) -> bool:
    """Whether a cell can be measured in its mode."""
    return not _hindrances(cell)


def left_out(cells: Iterable[Cell]) -> str | None:
    """One line that says what cannot be measured in this mode, and why; None if all can."""
    cells = list(dict.fromkeys(cells))
    why = [_hindrances(cell) for cell in cells]
    left = sum(map(bool, why))
    if not left:
        return None
    what = ", ".join(sorted(set(chain.from_iterable(why))))
    return f"{left} of {len(cells)} measurements are for the simulation, not for real nodes: {what}."


def _hindrances(cell: Cell) -> list[str]:
    """What of a cell real nodes cannot do."""
    if cell.mode == "sim":
        return []
    found = []
    if cell.poll_interval_s not in REAL_POLLS_S:
        found.append(f"Δ_poll {ms(cell.poll_interval_s)}")
    if cell.page_size != REAL_PAGE_SIZE:
        found.append(f"page size {cell.page_size}")
    return found
