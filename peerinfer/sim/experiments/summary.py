"""A record in a few numbers. Tokens are counted first and divided last."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from peerinfer.sim.experiments.record import Record, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Means over all answered requests of one or several seeds."""

    requests: int
    failed: int
    latency_s: float
    latency_spread_s: float
    """Standard deviation of the seeds' means; 0 for one seed."""
    engine_s: float
    trees_s: float
    processing_s: float
    network_s: float
    """These four add up to the latency (paper §5)."""
    ttft_s: float
    """To the first token."""
    ttft_p95_s: float
    """All but a twentieth were as fast."""
    expected_hit: float
    """Share of prompt tokens that the entry node expected to be cached."""
    actual_hit: float
    """Share of prompt tokens that were."""
    forwarded: float
    """Share of requests that were served elsewhere than where they came in."""
    hottest_share: float
    """Share of requests served by the busiest node; the mean over the seeds."""


def summarise(records: Sequence[Record]) -> Summary:
    """The summary of one configuration's records, one per seed."""
    by_seed = [record.answered for record in records]
    rows = [row for each in by_seed for row in each]
    assert rows, "a summary needs an answered request"
    prompt_tokens = sum(row.prompt_tokens for row in rows)
    means = [_mean_s([row.latency_us for row in each]) for each in by_seed]
    return Summary(
        requests=sum(len(record.rows) for record in records),
        failed=sum(len(record.rows) for record in records) - len(rows),
        latency_s=fmean(means),
        latency_spread_s=stdev(means) if len(means) > 1 else 0.0,
        engine_s=_mean_s([row.engine_us for row in rows]),
        trees_s=_mean_s([row.trees_us for row in rows]),
        processing_s=_mean_s([row.processing_us for row in rows]),
        network_s=_mean_s([row.network_us for row in rows]),
        ttft_s=_mean_s([row.ttft_us for row in rows]),
        ttft_p95_s=sorted(row.ttft_us for row in rows)[math.ceil(0.95 * len(rows)) - 1] / 1e6,
        expected_hit=sum(row.expected_cached_tokens for row in rows) / prompt_tokens,
        actual_hit=sum(row.cached_tokens for row in rows) / prompt_tokens,
        forwarded=sum(row.entry != row.served_by for row in rows) / len(rows),
        hottest_share=fmean(map(hottest_share, by_seed)),
    )


def hottest_share(rows: Sequence[Row]) -> float:
    """The share of the busiest node."""
    return Counter(row.served_by for row in rows).most_common(1)[0][1] / len(rows)


def _mean_s(times_us: Sequence[int]) -> float:
    return sum(times_us) / len(times_us) / 1e6
