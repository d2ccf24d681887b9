"""Experiments with real nodes: what they are told, and what is read out of their answers."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from peerinfer.cli.calibrate import Point, fit
from peerinfer.cli.config_file import apply_tables
from peerinfer.cli.errors import FailedError
from peerinfer.cli.experiment_nodes import measure, node_config
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.workloads.corpus import Corpus, Subject
from peerinfer.sim.workloads.mmlu import MmluSpec

CELL = Cell(
    workload=MmluSpec(nodes=2, requests=8),
    policy="longest-prefix",
    network_delay_s=0.2,
    poll_interval_s=2.0,
    cache_tokens=4096,
)


def test_nodes_are_configured_as_the_cell_says() -> None:
    config = apply_tables(tomllib.loads(node_config(CELL)), where="experiment.toml")
    assert config.routing.policy == "longest-prefix"
    assert config.anti_entropy.poll_interval_s == 2.0
    assert (config.overlay.network_delay_s, config.overlay.network_jitter_s) == (0.2, 0.01)
    assert (config.engine.cache_tokens, config.engine.page_size) == (4096, 16)


def bytes_corpus() -> Corpus:
    """Prompts in the tokens of the simulated engine, which are bytes."""
    return Corpus(
        digest="bytes",
        subjects=tuple(
            Subject(
                name=name,
                header=(),
                examples=tuple(f"{name} is what these examples are about. ".encode() * 8),
                questions=[tuple(f"{name}, number {number}?".encode()) for number in range(4)],
            )
            for name in ("rivers", "mountains")
        ),
    )


async def test_real_nodes_answer_a_workload_with_the_delay_of_the_network() -> None:
    """Goal: the whole of real mode but for the engine. Method: two processes with simulated engines.

    Each subject's prefix is computed once; who enters elsewhere is forwarded, and pays at least two delays.
    """
    cell = replace(CELL, mode="simulated", network_delay_s=0.1, poll_interval_s=0.5)  # type: ignore[arg-type]
    ticks: list[None] = []
    record = await measure(
        cell,
        MmluSpec(nodes=2, requests=8).build(bytes_corpus()),
        options=(),
        say=lambda _: None,
        tick=lambda: ticks.append(None),
    )
    assert len(ticks) == len(record.answered) == 8
    forwarded = [row for row in record.rows if row.entry != row.served_by]
    assert forwarded
    assert all(row.network_us >= 150_000 for row in forwarded)
    assert all(row.network_us == 0 for row in record.rows if row.entry == row.served_by)
    for row in record.rows:
        parts_us = row.engine_us + row.trees_us + row.processing_us + row.network_us
        assert parts_us == pytest.approx(row.latency_us, abs=5)
    assert sum(row.cached_tokens >= 256 for row in record.rows) >= 4


@pytest.mark.parametrize("s_per_pair", [0.0, 4e-6])
def test_the_plane_through_the_measurements_is_the_calibration(s_per_pair: float) -> None:
    def point(tokens: int, cached: int) -> Point:
        pairs = (tokens**2 - cached**2) / 2
        return Point(tokens, cached, 0.05 + (tokens - cached) / 200 + pairs * s_per_pair, 0.003)

    points = [point(*shape) for shape in ((64, 0), (128, 0), (512, 0), (1024, 0), (1024, 960), (1500, 1024))]
    ours = fit(points, name="mine", decode_s=0.02, hop_s=0.004)
    assert ours.prefill_tokens_per_s == pytest.approx(200)
    assert ours.prefill_s_per_pair == pytest.approx(s_per_pair, abs=1e-12)
    assert ours.decode_tokens_per_s == pytest.approx(50)
    assert ours.overhead_s == pytest.approx(0.03)
    assert (ours.processing_s, ours.hop_s) == (0.003, 0.004)


def test_attention_that_would_make_long_prompts_cheap_is_left_out() -> None:
    points = [Point(tokens, 0, seconds, 0.0) for tokens, seconds in ((64, 0.3), (512, 2.4), (1024, 4.0))]
    assert fit(points, name="mine", decode_s=0.02, hop_s=0.0).prefill_s_per_pair == 0.0


def test_times_that_shrink_with_the_prompt_are_no_calibration() -> None:
    points = [Point(64, 0, 2.0, 0.0), Point(1024, 0, 1.0, 0.0)]
    with pytest.raises(FailedError, match="make no sense"):
        fit(points, name="mine", decode_s=0.02, hop_s=0.004)
