"""peerinfer against central routers: the same engines, the same requests, one system after the other.

    benchmarks/setup_routers.sh ROUTERS
    python -m benchmarks.vs_router --routers ROUTERS --data DATA [--requests 400] [--seeds 1] [--json FILE]

Four engines without a model (kit/worker.py: 25,000 tokens of cache, 5,000 tokens/s of prefill) stand behind
four peerinfer nodes, behind sglang-router 0.3.2 and behind its successor smg 1.13.0, both with their policy
`cache_aware`, and behind nothing, asked in turn. Everything is started anew for each run. Clients acknowledge
packets at once, without which sglang-router's streams would stall for 43 ms each. peerinfer's clients ask all
four nodes in turn; a central router has one address.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.kit.client import Answer, Client
from benchmarks.kit.processes import Process, get_json, processes
from benchmarks.kit.report import header, percentile, spread, table, write_json
from benchmarks.kit.systems import SYSTEMS, Running, installed, start
from benchmarks.kit.vocabulary import make_model
from benchmarks.kit.workloads import NODES, WORKLOADS, Due, bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One system, one workload, one seed."""

    requests: int
    errors: int
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    requests_per_s: float
    hit_rate: float
    """Cached prompt tokens, as the engines count them."""
    hottest_share: float
    """Of the requests, at the busiest engine."""
    hottest_work: float
    """Of the prefill work, at the busiest engine."""
    cpu_ms_per_request: float
    """Of the router, or of all nodes."""
    late_ms: float
    """The most that the client was behind its own schedule."""


async def ask_all(running: Running, workload: Sequence[Due]) -> tuple[list[Answer], float, float]:
    """Every request when it is due; the answers, how long it took, and the client's own delay in ms."""
    clients = [Client(url) for url in running.urls]
    begun = time.perf_counter() + 0.1
    late_s = 0.0
    asked = []
    async with asyncio.TaskGroup() as tasks:
        for number, due in enumerate(workload):
            at = begun + due.at_s
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            late_s = max(late_s, time.perf_counter() - at)
            entry = due.entry if len(clients) > 1 else number
            client = clients[entry % len(clients)]
            asked.append(tasks.create_task(client.ask(due.body, due=at)))
    took_s = time.perf_counter() - begun
    for client in clients:
        client.close()
    return [task.result() for task in asked], took_s, late_s * 1e3


def run(name: str, workload: Sequence[Due], *, routers: Path | None, options: Sequence[str]) -> Result:
    """Start everything, ask, end everything."""
    with tempfile.TemporaryDirectory() as directory, processes(Path(directory)) as starter:
        model = make_model(Path(directory) / "model")
        workers = [starter.worker(model) for _ in range(NODES)]
        running = start(name, starter, workers, routers=routers, options=options)
        time.sleep(2.0)  # routers and nodes have looked at their engines by then
        before = running.cpu_s
        answers, took_s, late_ms = asyncio.run(ask_all(running, workload))
        used_s = running.cpu_s - before
        return summary(answers, workers, took_s=took_s, used_s=used_s, late_ms=late_ms)


def summary(
    answers: Sequence[Answer], workers: Sequence[Process], *, took_s: float, used_s: float, late_ms: float
) -> Result:
    """What came of a run."""
    good = [answer for answer in answers if not answer.error]
    ttft = [answer.ttft_s * 1e3 for answer in good]
    told = [get_json(f"{worker.url}/_stats") for worker in workers]
    counts = {name: [int(str(each[name])) for each in told] for name in told[0]}
    return Result(
        requests=len(answers),
        errors=len(answers) - len(good),
        ttft_mean_ms=statistics.fmean(ttft),
        ttft_p50_ms=percentile(ttft, 0.5),
        ttft_p99_ms=percentile(ttft, 0.99),
        requests_per_s=len(good) / took_s,
        hit_rate=sum(counts["cached_tokens"]) / max(1, sum(counts["prompt_tokens"])),
        hottest_share=max(counts["requests"]) / max(1, sum(counts["requests"])),
        hottest_work=max(counts["prefill_us"]) / max(1, sum(counts["prefill_us"])),
        cpu_ms_per_request=used_s / len(answers) * 1e3,
        late_ms=late_ms,
    )


def show(workload: str, results: dict[str, list[Result]]) -> None:
    """One workload's table."""

    def over(name: str, field: str, digits: int) -> str:
        return spread([getattr(each, field) for each in results[name]], digits=digits)

    rows = [
        [
            name,
            over(name, "ttft_mean_ms", 1),
            over(name, "ttft_p50_ms", 1),
            over(name, "ttft_p99_ms", 0),
            over(name, "requests_per_s", 1),
            over(name, "hit_rate", 3),
            over(name, "hottest_share", 2),
            over(name, "hottest_work", 2),
            str(sum(each.errors for each in results[name])),
            over(name, "cpu_ms_per_request", 2),
            over(name, "late_ms", 0),
        ]
        for name in results
    ]
    columns = ["", "TTFT mean ms", "p50", "p99", "requests/s", "hit rate", "hottest share"]
    table(workload, [*columns, "hottest work", "errors", "CPU ms per request", "client late ms"], rows)


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--routers", type=Path, help="where setup_routers.sh has put them")
    parser.add_argument("--data", type=Path, help="a directory with mmlu/ and mooncake/")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--node-options", default="", help="for peerinfer's nodes, in one string")
    parser.add_argument("--json", type=Path, help="where the raw numbers go")
    options = parser.parse_args()
    facts = header()
    systems = [name for name in options.systems if installed(name, options.routers)]
    if missing := set(options.systems) - set(systems):
        print(f"not installed, left out: {', '.join(sorted(missing))} (benchmarks/setup_routers.sh)")
    everything: dict[str, dict[str, list[Result]]] = {}
    for workload in options.workloads:
        results: dict[str, list[Result]] = {name: [] for name in systems}
        for seed in range(options.seeds):
            requests = bodies(WORKLOADS[workload](options.requests, seed, options.data))
            for name in systems:
                nodes = options.node_options.split()
                results[name].append(run(name, requests, routers=options.routers, options=nodes))
        show(workload, results)
        everything[workload] = results
    raw = {
        workload: {name: [asdict(each) for each in rows] for name, rows in results.items()}
        for workload, results in everything.items()
    }
    write_json(options.json, facts, raw)


if __name__ == "__main__":
    main()
