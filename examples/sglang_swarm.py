"""Four peers, each with an SGLang of its own: on this machine's GPUs, or else on its CPU.

    python examples/sglang_swarm.py [PYTHON_THAT_HAS_SGLANG]

Without a GPU run `make sglang-cpu` first; the Python is then the one in .venv-sglang, found by itself. There
four SGLangs take 10 GB of memory, and on two cores a few minutes to start.
"""

import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import trio

from peerinfer.app import Peer, run_peer
from peerinfer.config import Config, EngineConfig, HttpConfig, OverlayConfig

PEERS = 4
HERE = Path(__file__).parents[1] / ".venv-sglang/bin/python"
GPUS = len(list(Path("/dev").glob("nvidia[0-9]*")))
RULES = "".join(
    f" The guest in room {n} gets {n % 7} towels, and breakfast at {6 + n % 5}." for n in range(24)
)


def engine_config(n: int) -> EngineConfig:
    """The n-th peer's engine: peers take turns on the GPUs, and those on one GPU share its memory."""
    python = sys.argv[1] if len(sys.argv) > 1 else str(HERE) if HERE.exists() else ""
    if not GPUS:
        return EngineConfig(kind="sglang", python=python)
    share = 0.85 / -(-PEERS // GPUS)
    args = ("--base-gpu-id", str(n % GPUS), "--mem-fraction-static", f"{share:.2f}")
    return EngineConfig(kind="sglang", python=python, args=args)


async def ask(http: httpx.AsyncClient, peer: Peer, rules: str, question: str, policy: str) -> float:
    """Ask for one token and print where it came from; the seconds that took."""
    messages = [{"role": "system", "content": rules}, {"role": "user", "content": question}]
    body = {"model": peer.node.info.model, "messages": messages, "max_tokens": 1, "temperature": 0}
    url, headers = f"{peer.http_url}/v1/chat/completions", {"x-peerinfer-policy": policy}
    started = time.perf_counter()
    answer = (await http.post(url, json=body, headers=headers)).raise_for_status()
    seconds, usage = time.perf_counter() - started, answer.json()["usage"]
    expected = answer.headers["x-peerinfer-expected-cached-tokens"]
    cached = f"{usage['prompt_tokens_details']['cached_tokens']:4} of {usage['prompt_tokens']}"
    route = answer.headers["x-peerinfer-route"]
    print(f"{policy:6} {route:10} {cached} tokens cached ({expected} expected), {seconds:5.2f} s")
    return seconds


async def meet(http: httpx.AsyncClient, peer: Peer, number: int) -> None:
    """Wait until the peer's SGLang is ready and it knows the others as ready, too."""
    state, alive = "", 0
    while state != "ready" or alive < PEERS - 1:
        await trio.sleep(0.5)
        now = (await http.get(f"{peer.http_url}/peerinfer/v1/status")).json()["engine_state"]
        if now != state:
            print(f"peer {number}: SGLang is {now}")
        known = (await http.get(f"{peer.http_url}/peerinfer/v1/peers")).json()["peers"]
        state, alive = now, sum(each["state"] == "alive" for each in known)


async def main() -> None:
    async with AsyncExitStack() as stack, httpx.AsyncClient(timeout=300, trust_env=False) as http:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers: list[Peer] = []
        for n in range(PEERS):
            overlay = OverlayConfig(listen=("/ip4/127.0.0.1/tcp/0",), join=peers[0].addrs if peers else ())
            config = Config(
                http=HttpConfig(port=0, allow_overrides=True), overlay=overlay, engine=engine_config(n)
            )
            peers.append(await stack.enter_async_context(run_peer(config, data_dir=home / str(n))))
        async with trio.open_nursery() as nursery:
            for n, peer in enumerate(peers):
                nursery.start_soon(meet, http, peer, n + 1)
        for policy in ("cost", "local"):
            rules = f"[{time.time_ns() % 1000:03}] You work at a hotel.{RULES}"  # a prefix not used before
            spent = [
                await ask(http, peers[n % PEERS], rules, f"Who is in room {n}?", policy) for n in range(8)
            ]
            print(f"{policy}: {sum(spent) / len(spent):.2f} s on average\n")


if __name__ == "__main__":
    trio.run(main)
