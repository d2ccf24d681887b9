"""`peerinfer calibrate`: what an engine on this machine costs, as numbers for the simulation.

Two nodes run as they do in production, and are asked prompts of known lengths, part of them cached. The
engine's times are an overhead, so much per computed token, and so much for each token that a computed one
looks back at (attention: SmolLM2's token 1,500 takes a CPU more than twice as long as its token 200). What
is measured around them is the node's processing and the cost of a hop.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
from rich.status import Status

from peerinfer.cli.demo_nodes import DemoNode
from peerinfer.cli.errors import FailedError, run_async
from peerinfer.cli.experiment_nodes import duration_s, open_nodes
from peerinfer.cli.model import fetch_with_progress
from peerinfer.cli.output import plain_console
from peerinfer.sim.experiments.calibration import Calibration, calibration_json
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.workloads.draw import draw_tokens
from peerinfer.sim.workloads.mmlu import MmluSpec

SHAPES = ((0, 128), (0, 512), (0, 1024), (512, 64), (512, 128), (1024, 64), (1024, 128), (1024, 512))
"""(cached, uncached) tokens of the prompts that are measured: those of MMLU."""
DECODED_TOKENS = 32
HOPS = 5


@dataclass(frozen=True, slots=True)
class Point:
    """One measured prompt."""

    tokens: int
    cached_tokens: int
    engine_s: float
    processing_s: float

    @property
    def uncached_tokens(self) -> int:
        """What was computed."""
        return self.tokens - self.cached_tokens

    @property
    def pairs(self) -> float:
        """Of a computed token and one at or before it."""
        return (self.tokens**2 - self.cached_tokens**2) / 2


@click.command()
@click.option(
    "--engine",
    type=click.Choice(["embedded", "sglang"]),
    default="embedded",
    show_default=True,
    help="The engine to measure.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Of each prompt.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("calibration.json"),
    show_default=True,
    help="The file for `peerinfer experiment --calibration`.",
)
@click.option(
    "--engine-python",
    type=click.Path(exists=True, dir_okay=False),
    help="The Python in whose environment SGLang is installed.",
)
def calibrate(engine: str, repeats: int, out: Path, engine_python: str | None) -> None:
    """Measure an engine on this machine for the simulation: a minute with the embedded one."""
    console = plain_console(stderr=True)
    if engine == "embedded":
        fetch_with_progress(console)
    cell = Cell(
        workload=MmluSpec(nodes=2),
        mode="embedded" if engine == "embedded" else "sglang",
        network_delay_s=0.0,
        cache_tokens=8192,
    )
    options = ["--engine-python", engine_python] if engine_python else []
    with console.status("starting two nodes") as status:
        calibration = run_async(_calibrate, cell, options, repeats, status)
    out.write_text(calibration_json(calibration, machine=f"{platform.machine()} {platform.system()}"))
    click.echo(summary(calibration, out))


def summary(calibration: Calibration, out: Path) -> str:
    """The numbers for people."""
    behind_1000 = 1 / (1 / calibration.prefill_tokens_per_s + 1000 * calibration.prefill_s_per_pair)
    return (
        f"prefill {calibration.prefill_tokens_per_s:.0f} tokens/s, {behind_1000:.0f} behind 1,000 others, "
        f"decode {calibration.decode_tokens_per_s:.0f} tokens/s; per request "
        f"{calibration.overhead_s * 1e3:.0f} ms in the engine, {calibration.processing_s * 1e3:.1f} ms in "
        f"the node, {calibration.hop_s * 1e3:.1f} ms for a hop: {out}"
    )


async def _calibrate(cell: Cell, options: Sequence[str], repeats: int, status: Status) -> Calibration:
    async with open_nodes(cell, options=options, say=status.update) as nodes:
        points: list[Point] = []
        for turn in range(repeats):
            for shape in SHAPES:
                status.update(f"prompts: {len(points) + 1} of {repeats * len(SHAPES)}")
                points.append(await _prefill(nodes[0], turn, *shape))
        status.update("decoding and hops")
        decode_s = await _decode_s(nodes[0])
        hop_s = median([await _hop_s(nodes, turn) for turn in range(HOPS)])
    return fit(points, name=cell.mode, decode_s=decode_s, hop_s=hop_s)


def fit(points: Sequence[Point], *, name: str, decode_s: float, hop_s: float) -> Calibration:
    """The plane through the points that is least wrong in per cent: short prompts count as long ones do.

    Raises `FailedError` if they lie near none that makes sense.
    """
    overhead_s, slope, s_per_pair = _plane(points, attention=True)
    if s_per_pair < 0:  # the points show none
        overhead_s, slope, s_per_pair = _plane(points, attention=False)
    if slope <= 0 or decode_s <= 0:
        raise FailedError("the times make no sense: is this machine busy with something else?")
    return Calibration(
        name=name,
        prefill_tokens_per_s=1 / slope,
        prefill_s_per_pair=s_per_pair,
        decode_tokens_per_s=1 / decode_s,
        overhead_s=max(0.0, overhead_s - decode_s),  # every prompt decoded one token
        processing_s=median(point.processing_s for point in points),
        hop_s=max(0.0, hop_s),
        slots=1,
    )


def _plane(points: Sequence[Point], *, attention: bool) -> tuple[float, float, float]:
    """(overhead, per computed token, per pair) in seconds."""
    try:
        import numpy as np  # an extra, and a tenth of a second
    except ImportError:
        raise FailedError('calibrating needs numpy: pip install "peerinfer[experiments]"') from None
    rows = [(1.0, each.uncached_tokens, each.pairs if attention else 0.0) for each in points]
    took_s = np.array([each.engine_s for each in points])
    found = np.linalg.lstsq(np.array(rows) / took_s[:, None], np.ones(len(points)), rcond=None)[0]
    overhead_s, slope, s_per_pair = (float(each) for each in found)
    return overhead_s, slope, s_per_pair


async def _prefill(node: DemoNode, turn: int, cached: int, uncached: int) -> Point:
    label = f"calibrate/{turn}/{cached}/{uncached}"
    head = draw_tokens(f"{label}/head", cached)
    if cached:
        await node.client.complete((*head, *head[:1]), model=node.model, max_tokens=1, policy="local")
    tokens = (*head, *draw_tokens(f"{label}/tail", uncached))
    answer = await node.client.complete(tokens, model=node.model, max_tokens=1, policy="local")
    engine_s = await duration_s(node, answer)
    return Point(len(tokens), answer.cached_tokens or 0, engine_s, answer.duration_s - engine_s)


async def _decode_s(node: DemoNode) -> float:
    """Seconds per token after the first."""
    tokens = draw_tokens("calibrate/decode", 64)
    times = []
    for count in (1, 1 + DECODED_TOKENS):  # the second finds the prompt's pages cached, as a third would
        await node.client.complete(tokens, model=node.model, max_tokens=1, policy="local")
        answer = await node.client.complete(tokens, model=node.model, max_tokens=count, policy="local")
        times.append(await duration_s(node, answer))
    return (times[1] - times[0]) / DECODED_TOKENS


async def _hop_s(nodes: Sequence[DemoNode], turn: int) -> float:
    """What the entry node waits beyond the serving node's time."""
    entry, serving = nodes
    tokens = draw_tokens(f"calibrate/hop/{turn % 2}", 64)
    answer = await entry.client.complete(tokens, model=entry.model, max_tokens=1, target=serving.peer_id)
    return await duration_s(entry, answer) - await duration_s(serving, answer)
