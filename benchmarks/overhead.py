"""What a node adds to a direct call of its engine: latency, CPU per request, CPU per streamed token.

    python -m benchmarks.overhead [--rounds 5] [--requests 200] [--beside CHECKOUT] [--json FILE]

Engines answer at once, so that all that is measured is what stands before them: nothing, a bare proxy on the
node's own HTTP, a node that serves here, a node that forwards to another one (the same machine, so that the
round trip is next to nothing). Rounds take turns, and what is added is the difference within a round. CPU
time is that of the node, or of both nodes, less what they use when nobody asks. The prompts have 540 tokens,
of which all but the last page is cached. With `--beside` the nodes of another checkout of this repository
take their turns as well: what changed shows even where the machine is busy.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.kit.client import Answer, Client, chat
from benchmarks.kit.processes import Process, Processes, free_port, processes, swarm
from benchmarks.kit.report import header, spread, table, write_json
from benchmarks.kit.vocabulary import make_model, spell

PROMPT_TOKENS = 540
PROMPTS = 16
STREAMS = 24
STREAM_TOKENS = 200
PACES_TOKENS_PER_S = (100, 1000)
"""The second is more than a node takes on one core: what it then relays is what it can."""
IDLE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Something to ask, and the processes whose CPU time is what it costs."""

    name: str
    url: str
    parts: tuple[Process, ...]
    target: str = ""
    """The node that has to serve."""
    idle: tuple[float, ...] = ()
    """CPU seconds per second that each process uses by itself."""

    @property
    def cpu_s(self) -> tuple[float, ...]:
        """CPU seconds of each process so far."""
        return tuple(part.cpu_s for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One system in one round."""

    p50_ms: float
    p99_ms: float
    ttft_p50_ms: float
    cpu_us_per_request: float
    cpu_us_per_token: float
    busier_us_per_token: float
    """That of the node that has more to do, where two take part."""
    tokens_per_s: float
    errors: int


def bodies(*, stream: bool, max_tokens: int, count: int) -> list[bytes]:
    """Requests for a few prompts in turn."""
    prompts = [spell(range(2000 + place, 2000 + place + PROMPT_TOKENS)) for place in range(PROMPTS)]
    made = [chat(prompt, max_tokens=max_tokens, stream=stream) for prompt in prompts]
    return [made[number % PROMPTS] for number in range(count)]


async def ask_all(system: System, requests: Sequence[bytes], *, at_once: int) -> tuple[list[Answer], float]:
    """All requests, so many at a time; the answers and how long it took."""
    headers = {"x-peerinfer-target": system.target} if system.target else {}
    client = Client(system.url, headers=headers)
    answers: list[Answer] = []
    turns = iter(requests)

    async def lane() -> None:
        answers.extend([await client.ask(request) for request in turns])

    loop = asyncio.get_running_loop()
    begun = loop.time()
    await asyncio.gather(*(lane() for _ in range(at_once)))
    took = loop.time() - begun
    client.close()
    return answers, took


def measure(system: System, requests: Sequence[bytes], *, at_once: int = 1) -> Round:
    """One round."""
    before = system.cpu_s
    answers, took_s = asyncio.run(ask_all(system, requests, at_once=at_once))
    used = [
        max(0.0, now - then - idle * took_s)
        for now, then, idle in zip(system.cpu_s, before, system.idle, strict=True)
    ]
    used_s = sum(used)
    took = sorted(answer.took_s for answer in answers)
    tokens = sum(answer.events for answer in answers) or len(answers)
    return Round(
        p50_ms=statistics.median(took) * 1e3,
        p99_ms=took[int(0.99 * len(took))] * 1e3,
        ttft_p50_ms=statistics.median(answer.ttft_s for answer in answers) * 1e3,
        cpu_us_per_request=used_s / len(answers) * 1e6,
        cpu_us_per_token=used_s / tokens * 1e6,
        busier_us_per_token=max(used, default=0.0) / tokens * 1e6,
        tokens_per_s=tokens / took_s,
        errors=sum(bool(answer.error) for answer in answers),
    )


def start(starter: Processes, model: Path, *pace: str, beside: Path | None) -> list[System]:
    """The systems over two engines."""
    workers = [starter.worker(model, *pace) for _ in range(2)]
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.kit.bare_proxy", "--port", str(port), "--to", workers[0].url]
    bare = starter.start(command, name="bare", url=f"http://127.0.0.1:{port}")
    assert bare.popen.stdout is not None
    bare.popen.stdout.readline()
    systems = [
        System(name="direct", url=workers[0].url, parts=()),
        System(name="bare proxy", url=bare.url, parts=(bare,)),
        *nodes(starter, workers, suffix=""),
    ]
    if beside is not None:
        starter.repository, ours = beside, starter.repository
        systems += nodes(starter, workers, suffix=f", {beside.name}")
        starter.repository = ours
    return with_idle(systems)


def nodes(starter: Processes, workers: Sequence[Process], *, suffix: str) -> list[System]:
    """Two nodes that know each other: what one serves itself, and what it forwards."""
    here, there = swarm(starter, workers, "--allow-overrides")
    ids = [str(node.ready["peer_id"]) for node in (here, there)]
    return [
        System(name=f"local{suffix}", url=here.url, parts=(here,), target=ids[0]),
        System(name=f"forwarded{suffix}", url=here.url, parts=(here, there), target=ids[1]),
    ]


def with_idle(systems: Sequence[System]) -> list[System]:
    """The systems, and what they cost while nobody asks."""
    before = [system.cpu_s for system in systems]
    time.sleep(IDLE_S)
    return [
        replace(
            system,
            idle=tuple((now - then) / IDLE_S for now, then in zip(system.cpu_s, used, strict=True)),
        )
        for system, used in zip(systems, before, strict=True)
    ]


Rounds = dict[str, list[Round]]


def run_case(
    systems: Sequence[System], requests: Sequence[bytes], *, rounds: int, at_once: int = 1
) -> Rounds:
    """So many rounds of every system, in turns, after one that is not counted."""
    measured: Rounds = {system.name: [] for system in systems}
    for number in range(rounds + 1):
        for system in systems:
            result = measure(system, requests, at_once=at_once)
            if result.errors:
                raise RuntimeError(f"{system.name}: {result.errors} of {len(requests)} requests failed")
            if number:
                measured[system.name].append(result)
    return measured


def added(measured: Rounds, name: str, field: str) -> list[float]:
    """What a system adds to a direct call, round by round."""
    pairs = zip(measured[name], measured["direct"], strict=True)
    return [getattr(mine, field) - getattr(direct, field) for mine, direct in pairs]


def show_requests(title: str, measured: Rounds) -> None:
    """Latency and CPU of single requests."""
    rows = [
        [
            name,
            spread([each.p50_ms for each in rounds]),
            spread(added(measured, name, "p50_ms")),
            spread(added(measured, name, "ttft_p50_ms")),
            spread([each.cpu_us_per_request for each in rounds], digits=0),
        ]
        for name, rounds in measured.items()
    ]
    table(title, ["", "p50 ms", "added p50 ms", "added first token ms", "CPU us per request"], rows)


def show_streams(title: str, measured: Rounds) -> None:
    """CPU of streams."""
    rows = []
    for name, rounds in measured.items():
        if name != "direct":
            rows.append(
                [
                    name,
                    spread([each.cpu_us_per_token for each in rounds], digits=1),
                    spread([1e6 / each.cpu_us_per_token for each in rounds], digits=0),
                    spread([1e6 / each.busier_us_per_token for each in rounds], digits=0),
                    spread([each.tokens_per_s for each in rounds], digits=0),
                ]
            )
    columns = ["", "CPU us per token", "tokens/s per core", "of the busier node", "tokens/s"]
    table(title, columns, rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200, help="per round and system")
    parser.add_argument("--beside", type=Path, help="another checkout, measured in the same turns")
    parser.add_argument("--json", type=Path, help="where the raw numbers go")
    options = parser.parse_args()
    facts = header()
    results: dict[str, dict[str, list[dict[str, float]]]] = {}

    def keep(case: str, measured: Rounds) -> Rounds:
        results[case] = {name: [asdict(each) for each in rounds] for name, rounds in measured.items()}
        return measured

    with tempfile.TemporaryDirectory() as directory, processes(Path(directory)) as starter:
        model = make_model(Path(directory) / "model")
        systems = start(starter, model, "--instant", beside=options.beside)
        count, rounds = options.requests, options.rounds
        for title, stream in (("whole answers of one token", False), ("streams of one token", True)):
            requests = bodies(stream=stream, max_tokens=1, count=count)
            show_requests(f"One client, {title}", keep(title, run_case(systems, requests, rounds=rounds)))
        requests = bodies(stream=True, max_tokens=STREAM_TOKENS, count=count)
        measured = keep("bursts", run_case(systems, requests, rounds=rounds, at_once=8))
        show_streams(f"8 streams at once, {STREAM_TOKENS} tokens that the engine has at once", measured)
    for pace in PACES_TOKENS_PER_S:
        with tempfile.TemporaryDirectory() as directory, processes(Path(directory)) as starter:
            model = make_model(Path(directory) / "model")
            speed = ("--decode", str(pace), "--prefill", "1000000")
            systems = start(starter, model, *speed, beside=options.beside)
            requests = bodies(stream=True, max_tokens=STREAM_TOKENS, count=STREAMS)
            measured = keep(f"paced {pace}", run_case(systems, requests, rounds=rounds, at_once=STREAMS))
            show_streams(f"{STREAMS} streams at once of {pace} tokens/s each", measured)
    write_json(options.json, facts, results)


if __name__ == "__main__":
    main()
