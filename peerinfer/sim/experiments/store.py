"""Results on disk: one file per cell, named by its key, so that an interrupted run goes on where it was."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.record import Record, record_from_json


class Store:
    """The results below a directory, for one corpus."""

    def __init__(self, directory: Path, *, corpus: str) -> None:
        self._directory = directory
        self._corpus = corpus

    def get(self, cell: Cell) -> Record | None:
        """A cell's result; None if it was not measured yet, or its file is damaged."""
        try:
            return record_from_json(json.loads(self._file(cell).read_text())["record"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def put(self, cell: Cell, record: Record) -> None:
        """Keep a result, whole or not at all."""
        self._directory.mkdir(parents=True, exist_ok=True)
        file = self._file(cell)
        half = file.with_suffix(f".{os.getpid()}.part")
        kind = type(cell.workload).__name__
        half.write_text(json.dumps({"cell": {"kind": kind, **asdict(cell)}, "record": record.as_json()}))
        half.replace(file)

    def _file(self, cell: Cell) -> Path:
        return self._directory / f"{cell.key(self._corpus)}.json"
