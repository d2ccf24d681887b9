"""Many seeds, each a small world of its own, looking for anything that is wrong.

python -m peerinfer.sim.soak --seeds 10000     on all cores
python -m peerinfer.sim.soak --seed 17         one of them again: the same history, in every process
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator

import click
from rich.progress import track

from peerinfer.sim.orphans import end_with_parent
from peerinfer.sim.runtime import run_virtual
from peerinfer.sim.storm import KINDS, Storm, Verdict

TOLD_EACH = 500
"""Seeds between two lines of progress where there is no terminal to draw a bar on."""


def run_seed(seed: int) -> Verdict:
    """What comes of one seed. What ends its world is a violation like any other."""
    storms: list[Storm] = []
    log = logging.getLogger("peerinfer")

    async def main() -> Verdict:
        storms.append(Storm(seed))
        log.addHandler(storms[0].checkers)
        return await storms[0].run()

    propagate, log.propagate = log.propagate, False
    try:
        return run_virtual(main, seed=seed)
    except Exception:
        return storms[0].verdict("".join(traceback.format_exc()))
    finally:
        log.propagate = propagate
        for storm in storms:
            log.removeHandler(storm.checkers)


def replay_line(seed: int) -> str:
    """The command that runs a seed again."""
    return f"python -m peerinfer.sim.soak --seed {seed}"


def soak(seeds: range, *, jobs: int) -> Iterator[Verdict]:
    """The verdicts of many seeds, in order."""
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=end_with_parent) as pool:
        yield from pool.imap(run_seed, seeds, chunksize=20)


@click.command()
@click.option("--seed", type=int, help="Run this one, and show all that was wrong.")
@click.option("--seeds", type=click.IntRange(1), default=300, show_default=True, help="Run so many.")
@click.option("--first", type=int, default=0, show_default=True, help="The first of them.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, help="Processes.")
def main(seed: int | None, seeds: int, first: int, jobs: int) -> None:
    """Run simulated worlds under random faults; status 1 if anything was wrong."""
    if seed is not None:
        verdict = run_seed(seed)
        click.echo(verdict.line)
        for violation in verdict.violations:
            click.echo(f"  {violation}")
        sys.exit(bool(verdict.violations))
    began = time.perf_counter()
    kinds: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    verdicts = soak(range(first, first + seeds), jobs=jobs)
    in_terminal = sys.stderr.isatty()
    for verdict in track(verdicts, total=seeds, description="seeds", disable=not in_terminal):
        if not in_terminal and (done := verdict.seed - first) and done % TOLD_EACH == 0:
            click.echo(f"{done} of {seeds} seeds after {time.perf_counter() - began:.0f} s", err=True)
        kinds[verdict.kind] += 1
        totals["requests"] += verdict.requests
        totals["answered"] += verdict.answered
        if verdict.violations:
            totals["wrong"] += 1
            lines = verdict.violations[0].strip().splitlines()
            click.echo(f"{verdict.line}\n  {lines[0]}\n  … {lines[-1]}\n  {replay_line(verdict.seed)}")
    took_s = time.perf_counter() - began
    click.echo(
        f"{seeds} seeds ({', '.join(f'{kinds[kind]} {kind}' for kind in KINDS)}), "
        f"{totals['answered']} of {totals['requests']} requests answered, "
        f"{totals['wrong']} seeds with violations, {took_s:.1f} s"
    )
    sys.exit(bool(totals["wrong"]))


if __name__ == "__main__":
    main()
