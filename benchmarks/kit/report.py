"""What every benchmark prints: the command, the machine, a table of medians with their spread, and JSON."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def header() -> dict[str, object]:
    """Command, revision and machine; printed, too."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    facts: dict[str, object] = {
        "command": shlex.join(["python", "-m", *_module(), *sys.argv[1:]]),
        "revision": _revision(),
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "load before": load,
    }
    for name, value in facts.items():
        print(f"{name}: {value}")
    return facts


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table as Markdown has them, so that it can go into a document."""
    print(f"\n{title}\n")
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def spread(values: Sequence[float], *, digits: int = 2) -> str:
    """The median, and the least and the most."""
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def write_json(file: Path | None, facts: dict[str, object], results: object) -> None:
    """Everything that was measured, raw."""
    if file is not None:
        file.write_text(json.dumps({**facts, "results": results}, indent=1), encoding="utf-8")
        print(f"\nraw numbers: {file}")


def _module() -> list[str]:
    spec = sys.modules["__main__"].__spec__
    return [spec.name] if spec is not None else [sys.argv[0]]


def _revision() -> str:
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return asked.stdout.strip()
