"""Lines of each node's share of a subject's requests, for figures 3 and 4."""

from __future__ import annotations

from collections.abc import Sequence

from peerinfer.sim.experiments import plot
from peerinfer.sim.experiments.record import Record
from peerinfer.sim.experiments.windows import Share, busiest_topics


def named_topics(record: Record, subjects: Sequence[str]) -> list[int]:
    """The subjects that a user named."""
    return [record.topics.index(name) for name in subjects]


def chosen_topics(record: Record, subjects: Sequence[str], count: int) -> list[int]:
    """The subjects that were named, else those with the most requests."""
    return named_topics(record, subjects)[:count] or busiest_topics(record, count)


def draw_shares(panel: plot.Axes, shares: Sequence[Share]) -> None:
    """A line per node."""
    ends = [share.requests for share in shares]
    nodes = len(shares[0].by_node) if shares else 0
    for node in range(nodes):
        colour = plot.COLOURS[node % len(plot.COLOURS)]
        panel.plot(
            ends,
            [share.by_node[node] for share in shares],
            color=colour,
            label=f"node {node + 1}",
            linewidth=1.5,
        )
    panel.set_ylim(-0.02, 1.02)
