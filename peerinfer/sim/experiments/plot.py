"""How our figures look: one place for fonts, colours and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Canvas

COLOURS = ("#2f6db5", "#e07b39", "#3a9a5c", "#8e5bb0", "#c2414b", "#7a7a7a")
"""Told apart in print and by colour-blind readers."""
GREY = "#8a8f98"
ZONES = {1: "#eceef1", 2: "#fcf0d0", 3: "#f9dcdc"}
ZONE_NUMBERS = {1: "#b4bac3", 2: "#d9bd72", 3: "#d99a9a"}

STYLE: Any = {
    "figure.dpi": 130,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8eb",
    "grid.linewidth": 0.8,
    "xtick.color": "#444b55",
    "ytick.color": "#444b55",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


def can_draw() -> bool:
    """Whether matplotlib is here."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


@contextmanager
def canvas(
    file: Path, *, rows: int = 1, columns: int = 1, size: tuple[float, float], **more: Any
) -> Iterator[tuple[Canvas, Sequence[Sequence[Axes]]]]:
    """A grid of axes that is written to a PNG when the block is left."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            rows, columns, figsize=size, squeeze=False, layout="constrained", **more
        )
        try:
            yield figure, axes
            # Nothing of the time or the machine goes into the file: the same data give the same bytes.
            figure.savefig(file, metadata={"Software": None})
        finally:
            pyplot.close(figure)
