"""Runs one target for a number of cases: what it refuses, what it accepts, and what it must not do.

An input whose outcome is new (another reason to refuse it, the first that is accepted) joins the pool that
later cases are made of, so that a run gets deeper the longer it is. Such inputs are what the corpus keeps.
"""

from __future__ import annotations

import random
import re
import time
import traceback
from dataclasses import dataclass, field

from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import Target, corpus_of

POOL_MAX = 512
OUTCOMES_MAX = 400
ACCEPTED_KEPT_SHARE = 0.002
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\d+|\[.*\]")


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of a run."""

    target: str
    cases: int = 0
    accepted: int = 0
    bugs: dict[str, bytes] = field(default_factory=dict)
    """Kind and place of each error that is none of the refusals, and its shortest input."""
    outcomes: dict[str, bytes] = field(default_factory=dict)
    """The shortest input of each different outcome."""
    slowest_s: float = 0.0
    slowest: bytes = b""
    duration_s: float = 0.0


def run_target(target: Target, *, cases: int, seed: int) -> Result:
    """Run so many cases, the corpus itself first; the same seed gives the same cases."""
    rng = random.Random(f"{target.name} {seed}")
    mutator = Mutator(rng, codec=target.codec)
    pool = corpus_of(target) or [b""]
    result = Result(target=target.name)
    started = time.perf_counter()
    for number in range(cases):
        payload = pool[number] if number < len(pool) else mutator.mutated(pool)
        outcome = _run_case(target, payload, result)
        shortest = result.outcomes.get(outcome)
        if shortest is None and len(result.outcomes) < OUTCOMES_MAX:
            result.outcomes[outcome] = payload
            _add(pool, payload, rng)
        elif shortest is not None and len(payload) < len(shortest):
            result.outcomes[outcome] = payload
        elif outcome == "accepted" and rng.random() < ACCEPTED_KEPT_SHARE:
            _add(pool, payload, rng)
    result.duration_s = time.perf_counter() - started
    return result


def _run_case(target: Target, payload: bytes, result: Result) -> str:
    """One case; what came of it in a few words."""
    result.cases += 1
    began = time.thread_time()
    try:
        target.run(payload)
    except target.refusals as error:
        message = str(error).replace(payload.decode("latin-1"), "…") if payload else str(error)
        outcome = f"{type(error).__name__}: {_VARIABLE.sub('…', message)[:80]}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome = f"BUG {type(error).__name__} at {where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        shortest = result.bugs.get(outcome)
        if shortest is None or len(payload) < len(shortest):
            result.bugs[outcome] = payload
    else:
        outcome = "accepted"
        result.accepted += 1
    took_s = time.thread_time() - began
    if took_s > result.slowest_s:
        result.slowest_s, result.slowest = took_s, payload
    return outcome


def _add(pool: list[bytes], payload: bytes, rng: random.Random) -> None:
    if len(pool) < POOL_MAX:
        pool.append(payload)
    else:
        pool[rng.randrange(len(pool))] = payload
