"""Each node's share of a subject's requests over time, drawn for figures 3 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from peerinfer.sim.experiments import plot
from peerinfer.sim.experiments.windows import Share, zones

if TYPE_CHECKING:
    from matplotlib.patches import Patch

ZONE_NAMES = {1: "zone 1, competitive", 2: "zone 2, specialised", 3: "zone 3, evicted"}
_HIGH, _LOW = 1.03, -0.03
"""Lines at 0 % and 100 % lie beside the frame, not on it."""


def draw_shares(panel: plot.Axes, shares: Sequence[Share]) -> None:
    """A line per node, and a thin one where each would be if they shared evenly."""
    ends = [share.requests for share in shares]
    nodes = len(shares[0].by_node) if shares else 0
    for node in range(nodes):
        colour = plot.COLOURS[node % len(plot.COLOURS)]
        values = [share.by_node[node] for share in shares]
        panel.plot(ends, values, color=colour, label=f"node {node + 1}", linewidth=1.6, alpha=0.9)
    if nodes:
        panel.axhline(1 / nodes, color=plot.GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        panel.set_xlim(0, ends[-1])
    panel.set_ylim(_LOW, _HIGH)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panel.set_yticks([0, 0.25, 0.5, 0.75, 1.0])


def shade_zones(panel: plot.Axes, shares: Sequence[Share]) -> None:
    """The zones as a background, each with its number where there is room."""
    found = zones(shares)
    begin = 0
    for place, (share, zone) in enumerate(zip(shares, found, strict=True)):
        if place + 1 < len(found) and found[place + 1] == zone:
            continue
        panel.axvspan(begin, share.requests, color=plot.ZONES[zone], linewidth=0, zorder=0)
        if share.requests - begin > _ROOM * shares[-1].requests:
            panel.text(
                (begin + share.requests) / 2,
                0.5,
                str(zone),
                ha="center",
                va="center",
                fontsize=13,
                color=plot.ZONE_NUMBERS[zone],
                zorder=1,
            )
        begin = share.requests


_ROOM = 0.04
"""Of a panel's width: a narrower zone gets no number."""


def zone_patches() -> list[Patch]:
    """For a legend of the zones."""
    from matplotlib.patches import Patch

    return [Patch(color=plot.ZONES[zone], label=name) for zone, name in ZONE_NAMES.items()]
