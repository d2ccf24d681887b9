"""One cell in virtual time: production nodes, simulated engines and network (sim/world.py)."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from peerinfer.config import AntiEntropyConfig, Config, EngineConfig, RoutingConfig
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.record import Record, Row
from peerinfer.sim.runtime import run_virtual
from peerinfer.sim.workloads.workload import Arrival, Workload
from peerinfer.sim.world import Conditions, Costs, NodeSpec, Outcome, World, WorldSpec

MESSAGES_PER_S_MAX = 1e6
"""The paper's nodes poll as fast as they are told to; ours would slow down for py-libp2p's sake."""


def simulate(cell: Cell, workload: Workload, *, tick: Callable[[], None]) -> Record:
    """Walk through a workload; `tick` hears of every request that is over."""
    started = time.perf_counter()
    rows = run_virtual(_walk, cell, workload, tick, seed=cell.workload.seed)
    return Record(workload.topics, cell.workload.nodes, tuple(rows), time.perf_counter() - started)


def world_spec(cell: Cell) -> WorldSpec:
    """The world that a cell is measured in."""
    costs = cell.calibration
    node = NodeSpec(
        cache_pages=cell.cache_tokens // cell.page_size,
        prefill_tokens_per_s=costs.prefill_tokens_per_s,
        prefill_s_per_pair=costs.prefill_s_per_pair,
        decode_tokens_per_s=costs.decode_tokens_per_s,
        overhead_s=costs.overhead_s,
        slots=costs.slots,
    )
    return WorldSpec(
        seed=cell.workload.seed,
        nodes=(node,) * cell.workload.nodes,
        conditions=Conditions(
            delay_s=cell.network_delay_s - cell.jitter_s + costs.hop_s / 2, jitter_s=2 * cell.jitter_s
        ),
        config=Config(
            routing=RoutingConfig(policy=cell.policy),
            anti_entropy=AntiEntropyConfig(
                poll_interval_s=cell.poll_interval_s, messages_per_s_max=MESSAGES_PER_S_MAX
            ),
            engine=EngineConfig(page_size=cell.page_size),
        ),
        costs=Costs(processing_s=costs.processing_s),
    )


async def _walk(cell: Cell, workload: Workload, tick: Callable[[], None]) -> list[Row]:
    rows: list[Row | None] = [None] * workload.count
    async with World(world_spec(cell)) as world, trio.open_nursery() as nursery:
        await world.settle()
        begin = trio.current_time()

        async def ask(place: int, arrival: Arrival) -> None:
            outcome = await world.request(
                entry=arrival.entry, tokens=arrival.tokens, max_tokens=arrival.max_tokens
            )
            rows[place] = _row(arrival, outcome)
            tick()

        for place, arrival in enumerate(workload.arrivals()):
            if arrival.at_s is None:
                await ask(place, arrival)
                await trio.sleep(cell.pause_s)
            else:
                await trio.sleep_until(begin + arrival.at_s)
                nursery.start_soon(ask, place, arrival)
    return [row for row in rows if row is not None]


def _row(arrival: Arrival, outcome: Outcome) -> Row:
    first = outcome.ended_at if outcome.first_chunk_at is None else outcome.first_chunk_at
    failed = outcome.error is not None or outcome.served_by is None
    return Row(
        topic=arrival.topic,
        entry=arrival.entry,
        served_by=-1 if failed or outcome.served_by is None else outcome.served_by,
        prompt_tokens=len(arrival.tokens),
        expected_cached_tokens=outcome.expected_cached_tokens,
        cached_tokens=outcome.cached_tokens,
        latency_us=_us(outcome.latency_s),
        ttft_us=_us(first - outcome.started_at),
        engine_us=_us(outcome.engine_s),
        trees_us=_us(outcome.trees_s),
        processing_us=_us(outcome.processing_s),
        network_us=_us(outcome.network_s),
    )


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
