"""The measured cells of a run, looked up by configuration."""

from __future__ import annotations

from collections.abc import Mapping

from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.record import Record
from peerinfer.sim.experiments.settings import Settings
from peerinfer.sim.experiments.summary import Summary, summarise
from peerinfer.sim.experiments.table import Value


def numbers(summary: Summary | None, *names: str) -> tuple[Value, ...]:
    """Some of a summary's numbers, for a table's row; nothing where nothing was measured."""
    return tuple(None if summary is None else getattr(summary, name) for name in names)


class Results:
    """What experiments make their tables of."""

    def __init__(self, settings: Settings, records: Mapping[Cell, Record]) -> None:
        self._settings = settings
        self._records = records

    def records(self, cell: Cell) -> list[Record]:
        """A configuration's records, one per seed; none if it cannot be measured in this mode."""
        return [self._records[each] for each in self._settings.seeded(cell) if each in self._records]

    def summary(self, cell: Cell) -> Summary | None:
        """A configuration in numbers, over all seeds."""
        records = self.records(cell)
        return summarise(records) if records else None
