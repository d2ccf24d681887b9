"""An engine that is killed and comes back empty, under load: what clients notice, and when it serves again.

    python -m benchmarks.engine_restart [--seconds 40] [--rate 20] [--systems peerinfer …] [--json FILE]

Four engines, groups of prompts that share prefixes, streamed answers of 40 tokens. After a quarter of the
time one engine is killed with SIGKILL, at half of it the same one is started again, with an empty cache, on
its old port. Told are the requests that failed, how long until the engine served again, and what its share is
at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.kit.client import Answer, Client, chat
from benchmarks.kit.processes import Process, Processes, processes
from benchmarks.kit.report import header, percentile, table, write_json
from benchmarks.kit.systems import SYSTEMS, Running, installed, start
from benchmarks.kit.vocabulary import make_model, spell
from benchmarks.kit.workloads import NODES, Due
from peerinfer.sim.workloads.shared_prefix import SharedPrefixSpec

VICTIM = 1
TOKENS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One system."""

    requests: int
    failed: int
    errors: dict[str, int]
    ttft_p99_before_ms: float
    ttft_p99_while_away_ms: float
    ttft_most_while_away_ms: float
    serves_again_after_s: float | None
    """From when the engine listens again until a client has an answer of it."""
    share_at_end: float
    """Of the last quarter's answers, those of the engine that came back."""
    hit_at_end: float


def workload(seconds: float, rate: float) -> list[Due]:
    """Groups of prompts, and endings of their own."""
    spec = SharedPrefixSpec(
        nodes=NODES,
        requests=round(seconds * rate),
        groups=40,
        prompts=1000,
        zipf=0.0,
        requests_per_s=rate,
    )
    return [
        Due(arrival.at_s or 0.0, arrival.entry, chat(spell(arrival.tokens), max_tokens=TOKENS, stream=True))
        for arrival in spec.build().arrivals()
    ]


class Run:
    """One system under load while its engine dies."""

    def __init__(self, starter: Processes, model: Path, running: Running, workers: list[Process]) -> None:
        self._starter, self._model, self._running, self._workers = starter, model, running, workers
        self.away_at = self.back_at = 0.0

    async def go(self, requests: Sequence[Due], seconds: float) -> list[tuple[Due, Answer]]:
        """Ask, kill, restart; every request with its answer."""
        clients = [Client(url) for url in self._running.urls]
        begun = time.perf_counter()
        asked = []
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._kill_and_restart(begun, seconds))
            for due in requests:
                at = begun + due.at_s
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
                client = clients[due.entry % len(clients)]
                asked.append((due, tasks.create_task(client.ask(due.body, due=at, timeout_s=30))))
        for client in clients:
            client.close()
        return [(due, task.result()) for due, task in asked]

    async def _kill_and_restart(self, begun: float, seconds: float) -> None:
        await asyncio.sleep(seconds / 4)
        victim = self._workers[VICTIM]
        port = int(victim.url.rpartition(":")[2])
        self.away_at = time.perf_counter() - begun
        self._starter.stop(victim, how=signal.SIGKILL)
        await asyncio.sleep(seconds / 4)
        restart = asyncio.to_thread(self._starter.worker, self._model, port=port)
        self._workers[VICTIM] = await restart
        self.back_at = time.perf_counter() - begun


def outcome(run: Run, answers: Sequence[tuple[Due, Answer]], *, seconds: float, victim: str) -> Outcome:
    """What clients noticed."""
    errors: dict[str, int] = {}
    for _, answer in answers:
        if answer.error:
            errors[answer.error] = errors.get(answer.error, 0) + 1

    def ttfts(begin: float, end: float) -> list[float]:
        good = [answer for due, answer in answers if begin <= due.at_s < end and not answer.error]
        return [answer.ttft_s * 1e3 for answer in good] or [0.0]

    ended = [(due.at_s + answer.took_s, answer) for due, answer in answers if not answer.error]
    again = [at for at, answer in ended if answer.worker == victim and at > run.back_at]
    last = [answer for due, answer in answers if due.at_s > 0.75 * seconds and not answer.error]
    return Outcome(
        requests=len(answers),
        failed=sum(errors.values()),
        errors=errors,
        ttft_p99_before_ms=percentile(ttfts(seconds / 8, run.away_at), 0.99),
        ttft_p99_while_away_ms=percentile(ttfts(run.away_at, run.back_at), 0.99),
        ttft_most_while_away_ms=max(ttfts(run.away_at, run.back_at)),
        serves_again_after_s=min(again) - run.back_at if again else None,
        share_at_end=sum(answer.worker == victim for answer in last) / max(1, len(last)),
        hit_at_end=sum(answer.cached_tokens for answer in last)
        / max(1, sum(answer.prompt_tokens for answer in last)),
    )


def main() -> None:
    """Run each system and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--routers", type=Path, help="where setup_routers.sh has put them")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS[:3])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second")
    parser.add_argument("--json", type=Path, help="where the raw numbers go")
    options = parser.parse_args()
    facts = header()
    requests = workload(options.seconds, options.rate)
    results: dict[str, Outcome] = {}
    for name in options.systems:
        if not installed(name, options.routers):
            print(f"not installed, left out: {name} (benchmarks/setup_routers.sh)")
            continue
        with tempfile.TemporaryDirectory() as directory, processes(Path(directory)) as starter:
            model = make_model(Path(directory) / "model")
            workers = [starter.worker(model) for _ in range(NODES)]
            victim = workers[VICTIM].name
            running = start(name, starter, workers, routers=options.routers, options=())
            run = Run(starter, model, running, workers)
            answers = asyncio.run(run.go(requests, options.seconds))
            results[name] = outcome(run, answers, seconds=options.seconds, victim=victim)
    rows = [
        [
            name,
            str(each.requests),
            f"{each.failed} {each.errors or ''}",
            f"{each.ttft_p99_before_ms:.0f}",
            f"{each.ttft_p99_while_away_ms:.0f} ({each.ttft_most_while_away_ms:.0f})",
            "never" if each.serves_again_after_s is None else f"{each.serves_again_after_s:.2f}",
            f"{each.share_at_end:.2f}",
            f"{each.hit_at_end:.3f}",
        ]
        for name, each in results.items()
    ]
    columns = ["", "requests", "failed", "TTFT p99 before ms", "while it is away (most)"]
    columns += ["serves again after s", "its share at the end", "hit rate at the end"]
    table("An engine is killed and comes back empty", columns, rows)
    write_json(options.json, facts, {name: asdict(each) for name, each in results.items()})


if __name__ == "__main__":
    main()
