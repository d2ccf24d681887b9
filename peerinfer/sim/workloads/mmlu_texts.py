"""MMLU's CSV files as few-shot prompts: per subject a header, five answered examples, and questions."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SHOTS = 5  # paper §4
_COLUMNS = {"question", "choice0", "choice1", "choice2", "choice3", "answer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectTexts:
    """One subject."""

    name: str
    header: str
    """MMLU's usual first line. All subjects' headers begin alike."""
    shots: tuple[str, ...]
    """Questions with their answers."""
    questions: tuple[str, ...]
    """Up to `Answer:`."""


def mmlu_root(directory: Path) -> Path | None:
    """Where below a data directory MMLU's `dev` and `test` are; None if nowhere."""
    for root in (directory / "mmlu", directory):
        if any((root / "dev").glob("*_dev.csv")):
            return root
    return None


def subject_names(root: Path) -> list[str]:
    """All subjects, sorted."""
    return sorted(file.name.removesuffix("_dev.csv") for file in (root / "dev").glob("*_dev.csv"))


def read_subject(root: Path, name: str) -> SubjectTexts:
    """One subject's texts. Raises `ValueError` naming the file that is not as it should be."""
    dev = list(_rows(root / "dev" / f"{name}_dev.csv"))
    test = _rows(root / "test" / f"{name}_test.csv")
    spoken = name.replace("_", " ")
    return SubjectTexts(
        name=name,
        header=f"The following are multiple choice questions (with answers) about {spoken}.",
        shots=tuple(f"{_ask(row)} {'ABCD'[int(row['answer'])]}" for row in dev[:SHOTS]),
        questions=tuple(map(_ask, test)),
    )


def _rows(file: Path) -> Iterator[dict[str, str]]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file}: {error}") from None
    if not rows or not rows[0].keys() >= _COLUMNS or any(row["answer"] not in set("0123") for row in rows):
        raise ValueError(f"{file} lacks the columns question, choice0 to choice3, answer (0 to 3)")
    return iter(rows)


def _ask(row: dict[str, str]) -> str:
    choices = "\n".join(f"{'ABCD'[index]}. {row[f'choice{index}']}" for index in range(4))
    return f"{row['question'].strip()}\n{choices}\nAnswer:"
