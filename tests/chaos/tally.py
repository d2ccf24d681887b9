"""What came of a chaos run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

SHOWN_MAX = 20


@dataclass(slots=True)
class Tally:
    """What came of the requests, and what befell the nodes."""

    good: int = 0
    moved: int = 0
    """Good ones that more than one node has worked on."""
    excused: int = 0
    """The entry node itself was killed or left under them."""
    bad: list[tuple[str, ...]] = field(default_factory=list)
    """What was wrong, in lines."""
    faults: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """For people."""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        return [
            f"faults: {faults or 'none'}",
            f"{self.good} right answers, {self.moved} of them from more than one attempt; "
            f"{self.excused} lost with their entry node; {len(self.bad)} BAD",
            *(line for each in self.bad[:SHOWN_MAX] for line in each),
        ]
