"""`peerinfer experiment`: the paper's tables and figures, simulated or with real nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from peerinfer.cli.errors import CommandError, run_async
from peerinfer.cli.experiment_nodes import measure
from peerinfer.cli.model import fetch_with_progress
from peerinfer.cli.output import plain_console
from peerinfer.core.policies import POLICIES
from peerinfer.sim.experiments.calibration import PAPER, read_calibration
from peerinfer.sim.experiments.catalogue import EXPERIMENTS
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.effort import effort
from peerinfer.sim.experiments.experiment import Experiment
from peerinfer.sim.experiments.prompts import Prompts, open_prompts
from peerinfer.sim.experiments.record import Record
from peerinfer.sim.experiments.results import Results
from peerinfer.sim.experiments.settings import Settings, left_out, possible
from peerinfer.sim.experiments.store import Store
from peerinfer.sim.experiments.write_report import extent, run_digest, write_report

SPEED_WINDOW_S = 600.0
"""The time left is reckoned from the speed of the last ten minutes: a few cells, not one."""
REAL_REQUESTS = 120
REAL_SUBJECTS = 6
REAL_CACHE_TOKENS = 4096
"""Less than the prefixes of six subjects and their questions: something has to go."""
SYNTHETIC_NOTE = "No --data: the prompts are generated, with MMLU's shape and without its texts."


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*EXPERIMENTS, "all"]), required=True)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(sorted(set(POLICIES) - {"local"})),
    help="What to compare with no routing; give it several times. [default: longest-prefix and cost]",
)
@click.option(
    "--mode",
    type=click.Choice(["sim", "embedded", "sglang"]),
    default="sim",
    show_default=True,
    help="Simulated nodes in virtual time, or real ones with real engines on this machine.",
)
@click.option(
    "--engine-python",
    type=click.Path(exists=True, dir_okay=False),
    help="With --mode sglang: the Python in whose environment SGLang is installed.",
)
@click.option(
    "--nodes", type=click.IntRange(min=2), default=Settings().nodes, show_default=True, help="In the swarm."
)
@click.option("--page-size", type=click.IntRange(1, 256), default=16, show_default=True)
@click.option(
    "--page-requests",
    type=click.IntRange(min=1),
    default=Settings().page_requests,
    show_default=True,
    help="Of table3's page sizes; pages of one token take long.",
)
@click.option(
    "--header/--no-header",
    default=True,
    show_default=True,
    help="Whether prompts open with the line that is common to all of MMLU's.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Orders to measure.")
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    help="The first so many of MMLU, and of a trace; breakeven and the rest of traces are fixed. "
    f"[default: all; {REAL_REQUESTS} with real nodes]",
)
@click.option(
    "--entry",
    type=click.Choice(["round-robin", "random"]),
    default="round-robin",
    show_default=True,
    help="Which node a client asks.",
)
@click.option("--subject", "subjects", multiple=True, help="A subject of figures 3 and 4; give it twice.")
@click.option(
    "--subjects-max",
    type=click.IntRange(min=2),
    help=f"So many of MMLU's subjects. [default: all; {REAL_SUBJECTS} with real nodes]",
)
@click.option(
    "--cache-tokens",
    type=click.IntRange(min=256),
    help=f"Each node's cache. [default: {Settings().cache_tokens}; {REAL_CACHE_TOKENS} with real nodes]",
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=Settings().speed,
    show_default=True,
    help="How many times as fast as they came Mooncake's requests come.",
)
@click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The simulated nodes' speed, from `peerinfer calibrate`. [default: fitted to the paper]",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A directory with mmlu/dev and mmlu/test. [default: generated prompts of the same shape]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("experiments"),
    show_default=True,
    help="Where results go; what is there already is not measured again.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes. [default: one per core]")
def experiment(
    names: Sequence[str],
    data: Path | None,
    out: Path,
    jobs: int | None,
    calibration: Path | None,
    policies: tuple[str, ...],
    engine_python: str | None,
    **options: Any,
) -> None:
    """Measure the paper's tables and figures: table1, table2, table3, fig2, fig3, fig4; and what we add
    to them: breakeven, traces. Or all.

    Writes Markdown, CSV, JSON and PNG to --out. An interrupted run goes on where it was when it is started
    again; a cell whose options changed is measured anew.
    """
    try:
        costs = PAPER if calibration is None else read_calibration(calibration)
        console = plain_console(stderr=True)
        prompts = open_prompts(data, say=console.print)
    except ValueError as error:
        raise CommandError(str(error)) from None
    settings = Settings(
        policies=policies or Settings().policies,
        calibration=costs,
        traces=data is not None and (data / "mooncake").is_dir(),
        **defaulted(options),
    )
    unknown = set(settings.subjects) - {subject.name for subject in prompts.corpus.subjects}
    if unknown:
        raise CommandError(f"--subject: MMLU has no {', '.join(sorted(unknown))}")
    chosen = list(EXPERIMENTS.values()) if "all" in names else [EXPERIMENTS[name] for name in names]
    if settings.mode == "embedded":
        fetch_with_progress(console)
    engine = ["--engine-python", engine_python] if engine_python else []
    run = Run(settings, prompts, out, jobs=jobs, console=console, engine=engine)
    click.echo(run.report(chosen, run.measure(chosen)))
    console.print(f"The results are in {out}.")


def defaulted(options: dict[str, Any]) -> dict[str, Any]:
    """The options with what was left out: real engines take seconds for what is simulated in milliseconds."""
    real = options["mode"] != "sim"
    defaults = {
        "requests": REAL_REQUESTS if real else None,
        "subjects_max": REAL_SUBJECTS if real else None,
        "cache_tokens": REAL_CACHE_TOKENS if real else Settings().cache_tokens,
    }
    return options | {name: value for name, value in defaults.items() if options[name] is None}


class Run:
    """One call of the command."""

    def __init__(
        self,
        settings: Settings,
        prompts: Prompts,
        out: Path,
        *,
        jobs: int | None,
        console: Console,
        engine: Sequence[str] = (),
    ) -> None:
        self._engine = engine
        self._settings, self._prompts, self._out = settings, prompts, out
        self._jobs, self._console = jobs, console
        self._store = Store(out / "cells", corpus=prompts.corpus.digest)

    def measure(self, experiments: Sequence[Experiment]) -> dict[Cell, Record]:
        """All records that these experiments need, those that are there already among them."""
        wanted = self._wanted(experiments)
        if left := left_out(wanted):
            self._console.print(left)
        cells = [cell for cell in wanted if possible(cell)]
        records = {cell: self._store.get(cell) for cell in cells}
        missing = {cell: self._count(cell) for cell, record in records.items() if record is None}
        if missing:
            self._console.print(
                f"{len(cells)} measurements, {len(cells) - len(missing)} of them done before; the others "
                f"have {sum(missing.values()):,} requests"
            )
            self._run(missing)
            records |= {cell: self._store.get(cell) for cell in missing}
        return {cell: record for cell, record in records.items() if record is not None}

    def _wanted(self, experiments: Sequence[Experiment]) -> list[Cell]:
        """The cells of some experiments, with every seed, each once."""
        cells = [
            cell
            for each in experiments
            for configuration in each.cells(self._settings)
            for cell in self._settings.seeded(configuration)
        ]
        return list(dict.fromkeys(cells))

    def _count(self, cell: Cell) -> int:
        return self._prompts.workload(cell.workload).count

    def _run(self, requests: Mapping[Cell, int]) -> None:
        """Measure cells that have so many requests each. Progress, and the time left, go by their effort."""
        efforts = {cell: count * effort(cell) for cell, count in requests.items()}
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._console, speed_estimate_period=SPEED_WINDOW_S) as bar:
            task = bar.add_task("measuring", total=sum(efforts.values()))
            if self._settings.mode == "sim":
                from peerinfer.sim.experiments.run_cells import run_cells  # loads a whole node

                run_cells(
                    longest_first(efforts),
                    data=self._prompts.data,
                    directory=self._out / "cells",
                    jobs=self._jobs,
                    progress=lambda done: bar.update(task, completed=done),
                )
            else:
                run_async(self._run_real, list(requests), bar, task)

    async def _run_real(self, cells: Sequence[Cell], bar: Progress, task: TaskID) -> None:
        """One cell after the other: they would slow each other down."""
        for cell in cells:
            record = await measure(
                cell,
                self._prompts.workload(cell.workload),
                options=self._engine,
                say=lambda doing: bar.update(task, description=doing),
                tick=partial(bar.update, task, advance=effort(cell), description="measuring"),
            )
            self._store.put(cell, record)

    def report(self, experiments: Sequence[Experiment], records: Mapping[Cell, Record]) -> str:
        """Write the results; returns all of them as one page."""
        results = Results(self._settings, records)
        notes = [] if self._prompts.data is not None else [SYNTHETIC_NOTE]
        pages = []
        for each in experiments:
            wanted = self._wanted([each])
            left = left_out(wanted)
            pages.append(
                write_report(
                    self._out,
                    each,
                    each.report(self._settings, results),
                    measured=extent([records[cell] for cell in wanted if cell in records]),
                    notes=notes if left is None else [*notes, left],
                )
            )
        return "\n".join([*pages, f"Digest of all measurements: {run_digest(records)}"])


def longest_first(efforts: Mapping[Cell, int]) -> list[Cell]:
    """The order to measure in: begun last, a long one would run alone."""
    return sorted(efforts, key=lambda cell: -efforts[cell])
