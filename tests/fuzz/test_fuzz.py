"""A bounded part of the fuzzing in every run of the tests; `make fuzz CASES=…` is the unbounded one."""

from __future__ import annotations

import pytest

from tests.fuzz.runner import run_target
from tests.fuzz.targets import Target, all_targets, corpus_of

CASES = 1500
"""Per target: some seconds in all on a slow machine."""
TARGETS = all_targets()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_parser_of_strangers_bytes_refuses_or_reads_them(name: str) -> None:
    """Goal: nothing but the errors that callers count and drop. Method: the corpus, then changes of it."""
    target = TARGETS[name]
    result = run_target(target, cases=len(corpus_of(target)) + CASES // target.cost, seed=1)
    assert {where: payload.hex() for where, payload in result.bugs.items()} == {}


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_corpus_has_what_a_parser_takes(name: str) -> None:
    """Goal: the changes start from inputs that get past the first check."""
    target = TARGETS[name]
    assert run_target(target, cases=len(corpus_of(target)), seed=0).accepted > 0


def test_a_parser_with_a_bug_is_found_out() -> None:
    """Method: one that chokes on a byte that is in no seed; the same seed finds the same input."""

    def chokes(payload: bytes) -> None:
        if b"\xff" in payload:
            raise KeyError(payload)
        if len(payload) > 8:
            raise ValueError("too long")

    target = Target(name="chokes", run=chokes, refusals=(ValueError,), seeds=(b"harmless",))
    first, second = (run_target(target, cases=2000, seed=7) for _ in range(2))
    (bug,) = first.bugs
    assert bug.startswith("BUG KeyError at test_fuzz.py:")
    assert b"\xff" in first.bugs[bug]
    assert first.bugs == second.bugs
    assert first.accepted == second.accepted > 0
