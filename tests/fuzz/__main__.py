"""`python -m tests.fuzz [--cases N] [--target NAME] [--seed N] [--keep]`; what `make fuzz CASES=…` runs.

Prints a line per target, and for each bug its place and the input as hex, which belongs into the corpus once
the bug is fixed. Status 1 if there was one. `--keep` adds to the corpus the shortest input of each outcome
that it has none of.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.runner import Result, run_target
from tests.fuzz.targets import CORPUS, Target, all_targets, corpus_of

KEPT_BYTES_MAX = 1024
KEPT_PER_TARGET_MAX = 100
CHUNK = 200_000
"""Cases per round of a target: each round has a pool of its own that starts from the corpus."""


def main() -> int:
    """Run the command line."""
    targets = all_targets()
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument(
        "--cases", type=int, default=100_000, help="in all; shared by the targets, slow ones get fewer"
    )
    parser.add_argument("--target", choices=sorted(targets), action="append", default=[])
    parser.add_argument("--seed", type=int, default=time.time_ns() // 10**9)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    chosen = [targets[name] for name in options.target or targets]
    print(f"seed {options.seed}", flush=True)
    started, failed, total = time.monotonic(), False, 0
    for target in chosen:
        left = -(-options.cases // len(chosen) // target.cost)
        seed = options.seed
        while left > 0:
            result = run_target(target, cases=min(left, CHUNK), seed=seed)
            left, seed, total = left - result.cases, seed + 1, total + result.cases
            failed |= bool(result.bugs)
            _report(result)
            if options.keep:
                _keep(target, result)
    print(f"{total} cases in {time.monotonic() - started:.0f} s", flush=True)
    return int(failed)


def _report(result: Result) -> None:
    each_us = result.duration_s / result.cases * 1e6
    print(
        f"{result.target:<15} {result.cases:>9} cases  {result.accepted / result.cases:6.1%} accepted"
        f"  {len(result.outcomes):>4} outcomes  {each_us:5.0f} us each"
        f"  slowest {result.slowest_s * 1e3:.1f} ms  {len(result.bugs)} bugs",
        flush=True,
    )
    for bug, payload in result.bugs.items():
        print(f"  {bug}\n    {payload[:4096].hex()}", flush=True)


def _keep(target: Target, result: Result) -> None:
    """The inputs whose outcome the corpus does not show yet."""
    seen = run_target(target, cases=len(corpus_of(target)), seed=0).outcomes
    fresh = [payload for outcome, payload in result.outcomes.items() if outcome not in seen]
    room = KEPT_PER_TARGET_MAX + len(target.seeds) - len(corpus_of(target))
    short = sorted((payload for payload in fresh if len(payload) <= KEPT_BYTES_MAX), key=len)[: max(room, 0)]
    CORPUS.mkdir(exist_ok=True)
    with (CORPUS / f"{target.name}.txt").open("a") as file:
        file.writelines(f"{payload.hex()}\n" for payload in short)


if __name__ == "__main__":
    sys.exit(main())
