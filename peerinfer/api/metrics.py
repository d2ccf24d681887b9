"""`/metrics`: what `status` and `peers` tell, and the sums of all requests, as Prometheus reads it.

Made when it is asked for, from what is in memory; between two scrapes nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from peerinfer import __version__
from peerinfer.api.ports import Serving
from peerinfer.node.totals import Histogram

PEER_STATES = ("alive", "suspect", "left", "draining", "loading", "paused")
_LABELS = ("peer_id", "model", "fingerprint", "engine", "policy")
_GAUGES = (
    ("running", "Requests that hold a slot."),
    ("queued", "Requests that wait for a slot."),
    ("queued_prefill_tokens", "Uncached prompt tokens that are still to be computed."),
    ("prefill_tokens_per_s", "Prompt tokens computed per second, as measured; 0: not yet."),
    ("decode_tokens_per_s", "Answer tokens per second of one request, as measured; 0: not yet."),
)


def metrics_routes(node: Serving) -> list[Route]:
    """`/metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(node))

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [Route("/metrics", metrics)]


class _Collector(Collector):
    """Reads the node at each scrape."""

    def __init__(self, node: Serving) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """All metrics of the node."""
        status: Mapping[str, Any] = self._node.status()
        yield _info(status)
        yield from _state(status)
        yield _counter("requests", "Requests, by what became of them.", "kind", status["requests"])
        yield _counter("dropped", "What came from outside and was refused.", "kind", status["dropped"])
        yield _peers(self._node.peers())
        yield from self._totals()

    def _totals(self) -> Iterator[Metric]:
        totals = self._node.totals()
        yield _counter("attempts", "Targets tried for clients' requests.", "outcome", totals.attempts)
        yield CounterMetricFamily(
            "peerinfer_prompt_tokens", "Prompt tokens of clients' requests.", totals.prompt_tokens
        )
        yield CounterMetricFamily(
            "peerinfer_cached_tokens", "Those that were found in a cache.", totals.cached_tokens
        )
        yield CounterMetricFamily(
            "peerinfer_expected_cached_tokens", "Those expected there.", totals.expected_cached_tokens
        )
        yield CounterMetricFamily(
            "peerinfer_saved_by_forwarding_seconds",
            "Time to first tokens that forwarding saved, against serving here.",
            totals.saved_by_forwarding_s,
        )
        yield CounterMetricFamily(
            "peerinfer_lost_by_forwarding_seconds",
            "Time to first tokens that forwarding cost, where serving here would have been faster.",
            totals.lost_by_forwarding_s,
        )
        yield _histogram("ttft_seconds", "From a client's request to its first token.", totals.ttft)
        yield _histogram(
            "request_duration_seconds", "From a client's request to its answer's end.", totals.duration
        )


def _info(status: Mapping[str, Any]) -> Metric:
    labels = {name: str(status[name]) for name in _LABELS if name in status}
    return InfoMetricFamily("peerinfer_node", "What this node is.", {**labels, "version": __version__})


def _state(status: Mapping[str, Any]) -> Iterator[Metric]:
    yield GaugeMetricFamily("peerinfer_uptime_seconds", "Since the node started.", status["uptime_s"])
    yield GaugeMetricFamily(
        "peerinfer_engine_ready", "1 while the engine serves.", float(status["engine_state"] == "ready")
    )
    for name in ("pages", "capacity_pages"):
        yield GaugeMetricFamily(f"peerinfer_cache_{name}", "Of the engine's cache.", status["cache"][name])
    for name, what in _GAUGES:
        yield GaugeMetricFamily(f"peerinfer_{name}", what, status["load"][name])


def _peers(peers: Mapping[str, Any]) -> Metric:
    family = GaugeMetricFamily("peerinfer_peers", "Peers known, by state.", labels=("state",))
    states = [peer["state"] for peer in peers["peers"]]
    for state in PEER_STATES:
        family.add_metric((state,), states.count(state))
    return family


def _counter(name: str, what: str, label: str, counts: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"peerinfer_{name}", what, labels=(label,))
    for kind, count in counts.items():
        family.add_metric((kind,), count)
    return family


def _histogram(name: str, what: str, found: Histogram) -> Metric:
    buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in found.buckets()]
    return HistogramMetricFamily(f"peerinfer_{name}", what, buckets=buckets, sum_value=found.sum_s)
