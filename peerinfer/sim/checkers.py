"""Asked after every event of a simulated world: is anything wrong?

What must hold whatever happens, and nothing else, is checked while the world lives (`Checkers`): each
request has exactly one result and takes at most one hop, no token comes twice and none is missing, an
estimate is some past tree of its owner (or a head of one) plus our own inserts, a suspect was silent, the
own tree is the engine's cache. What must hold once everything is healed and quiet is `check_quiet`'s part.

Checkers look at the nodes' insides and at what passes between their parts, keep their own books of it, and
change nothing. A violation is a sentence with its time; the first is the one to look at.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from peerinfer.sim.check_liveness import LivenessChecker
from peerinfer.sim.check_requests import RequestChecker
from peerinfer.sim.check_trees import TreeChecker

if TYPE_CHECKING:
    from peerinfer.sim.client import Client
    from peerinfer.sim.place import Place
    from peerinfer.sim.spec import Outcome


class Violations:
    """What was wrong, in the order in which it was found."""

    def __init__(self, most: int = 20) -> None:
        self.found: list[str] = []
        self._most = most

    def __call__(self, what: str) -> None:
        """Note a violation."""
        if len(self.found) < self._most:
            self.found.append(f"at {trio.current_time():.4f}: {what}")


class Checkers(logging.Handler):
    """All checkers of one world. As a log handler it takes every error that a node logs for a violation."""

    def __init__(self) -> None:
        super().__init__(level=logging.ERROR)
        self.violations = Violations()
        self._trees = TreeChecker(self.violations)
        self._liveness = LivenessChecker(self.violations)
        self._requests = RequestChecker(self.violations)

    @property
    def found(self) -> list[str]:
        """All violations so far."""
        return self.violations.found

    def emit(self, record: logging.LogRecord) -> None:
        """A node logged an error: in a simulation nobody is hostile, so it is a bug."""
        self.violations(f"logged: {record.getMessage()} {record.exc_info or ''}")

    def born(self, place: Place) -> None:
        """A node was built and is about to run."""
        self._trees.watch(place)
        self._liveness.watch(place)
        self._requests.watch(place)

    def died(self, place: Place) -> None:
        """A node crashed or is leaving."""
        self._requests.died(place)

    def asked(self, client: Client) -> None:
        """A client's request is about to be sent."""
        self._requests.asked(client)

    def ended(self, client: Client, outcome: Outcome | None) -> None:
        """A client got its outcome, or went away."""
        self._requests.ended(client, outcome)

    def check_over(self) -> None:
        """Every client should have its result by now."""
        self._requests.check_over()

    def check_quiet(self, living: list[Place]) -> None:
        """Everything is healed, and nothing has happened for long enough."""
        self._trees.check_quiet(living)
        self._liveness.check_quiet(living)
        self._requests.check_quiet(living)
