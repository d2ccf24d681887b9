"""What an experiment is: the cells that it needs, and what it makes of their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.results import Results
from peerinfer.sim.experiments.settings import Settings
from peerinfer.sim.experiments.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot, drawn when it is written, since matplotlib takes a second to load."""

    name: str
    title: str
    draw: Callable[[Path], None]
    """Writes the PNG."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What comes out of an experiment."""

    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One of the paper's tables or figures, or what we add to them."""

    name: str
    title: str
    cells: Callable[[Settings], list[Cell]]
    """The configurations; each is measured with every seed."""
    report: Callable[[Settings, Results], Report]
