"""Four peers in one process: they find each other, and a long prefix is computed once for all of them."""

import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import trio

from peerinfer.app import Peer, run_peer
from peerinfer.config import Config, HttpConfig, OverlayConfig
from peerinfer.engine.model_store import fetch_default_model

RULES = "".join(
    f" The guest in room {n} gets {n % 7} towels, and breakfast at {6 + n % 5}." for n in range(24)
)


async def ask(http: httpx.AsyncClient, peer: Peer, rules: str, question: str, policy: str) -> float:
    """Ask for one token and print where it came from; the seconds that took."""
    messages = [{"role": "system", "content": rules}, {"role": "user", "content": question}]
    body = {"model": peer.node.info.model, "messages": messages, "max_tokens": 1, "temperature": 0}
    url, headers = f"{peer.http_url}/v1/chat/completions", {"x-peerinfer-policy": policy}
    started = time.perf_counter()
    answer = (await http.post(url, json=body, headers=headers)).raise_for_status()
    seconds, usage = time.perf_counter() - started, answer.json()["usage"]
    cached = f"{usage['prompt_tokens_details']['cached_tokens']:4} of {usage['prompt_tokens']}"
    print(f"{policy:6} {answer.headers['x-peerinfer-route']:10} {cached} tokens cached, {seconds:5.2f} s")
    return seconds


async def meet(http: httpx.AsyncClient, peer: Peer) -> None:
    """Wait until the peer knows three others that can serve."""
    alive = 0
    while alive < 3:
        known = (await http.get(f"{peer.http_url}/peerinfer/v1/peers")).json()["peers"]
        alive = sum(each["state"] == "alive" for each in known)
        await trio.sleep(0.1)


async def main() -> None:
    fetch_default_model(lambda *_: None)
    async with AsyncExitStack() as stack, httpx.AsyncClient(timeout=60, trust_env=False) as http:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers: list[Peer] = []
        for n in range(4):
            overlay = OverlayConfig(listen=("/ip4/127.0.0.1/tcp/0",), join=peers[0].addrs if peers else ())
            config = Config(http=HttpConfig(port=0, allow_overrides=True), overlay=overlay)
            peers.append(await stack.enter_async_context(run_peer(config, data_dir=home / str(n))))
        for peer in peers:
            await meet(http, peer)
        for policy in ("cost", "local"):
            rules = f"[{time.time_ns() % 1000:03}] You work at a hotel.{RULES}"  # a prefix not used before
            spent = [await ask(http, peers[n % 4], rules, f"Who is in room {n}?", policy) for n in range(8)]
            print(f"{policy}: {sum(spent) / len(spent):.2f} s on average\n")


trio.run(main)
