"""Tables: numbers as they are in CSV and JSON, rounded for people in Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

Value = str | float | int | None
MISSING = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and how its numbers are shown: a format, after multiplying by `scale`."""

    title: str
    shown: str = ""
    scale: float = 1

    def text(self, value: Value) -> str:
        """A value as people read it."""
        if value is None:
            return MISSING
        return value if isinstance(value, str) else format(value * self.scale, self.shown)


def seconds(title: str) -> Column:
    """A column of seconds, to the millisecond."""
    return Column(title, ".3f")


def percent(title: str) -> Column:
    """A column of shares, as per cent."""
    return Column(title, ".1f", 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A titled table."""

    name: str
    """A file's name."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """For a page."""
        notes = [f"{note}\n" for note in self.notes]
        return "\n".join([f"### {self.title}\n", *self.lines(), "", *notes])

    def lines(self) -> list[str]:
        """Its Markdown without title and notes: a line of titles, one that aligns, and the rows."""
        return [
            _line([column.title for column in self.columns]),
            _line(["--:" if column.shown else "---" for column in self.columns]),
            *[_line(self.texts(row)) for row in self.rows],
        ]

    def texts(self, row: Sequence[Value]) -> list[str]:
        """A row as people read it."""
        return [column.text(value) for column, value in zip(self.columns, row, strict=True)]

    def csv(self) -> str:
        """With all digits; shares as shares."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.title for column in self.columns])
        writer.writerows(["" if value is None else value for value in row] for row in self.rows)
        return out.getvalue()

    def as_json(self) -> dict[str, object]:
        """A list of objects; and the lines for a page, so that nobody has to round again."""
        titles = [column.title for column in self.columns]
        return {
            "title": self.title,
            "rows": [dict(zip(titles, row, strict=True)) for row in self.rows],
            "notes": list(self.notes),
            "markdown": self.lines(),
        }


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
