"""The face on a real node without peers: what it says fits the schemas, and cancels reach its engine."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest
import trio

from peerinfer.api.server import serve_http
from peerinfer.config import Config, HttpConfig
from peerinfer.core.types import PeerId
from peerinfer.engine.simulated import SimulatedEngine
from peerinfer.node.node import Node
from peerinfer.node.ports import Call, Link, OverlaySink, PeerLostError, Standing
from tests.api.scripted import ME, raw_post
from tests.api.test_status import validator

CHAT = "/v1/chat/completions"
PROMPT = "All work and no play makes Jack a dull boy. " * 40


class AloneOverlay:
    """An overlay without peers."""

    peer_id = ME

    @asynccontextmanager
    async def run(self, sink: OverlaySink) -> AsyncIterator[None]:
        yield

    def addrs(self) -> tuple[str, ...]:
        return ()

    def links(self) -> Mapping[PeerId, Link]:
        return {}

    def standing(self) -> Standing:
        return Standing(unreached={}, relays=())

    async def publish(self, payload: bytes) -> None:
        await trio.lowlevel.checkpoint()

    def open_call(self, peer: PeerId) -> AbstractAsyncContextManager[Call]:
        raise PeerLostError(peer)

    async def pull(self, peer: PeerId) -> bytes:
        raise PeerLostError(peer)

    def learn(self, peer: PeerId, addrs: Sequence[str]) -> None:
        pass


@asynccontextmanager
async def alone(engine: SimulatedEngine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a node that serves with `engine` and is ready."""
    lives = itertools.count(1)
    node = Node(
        overlay=AloneOverlay(),
        engine=engine,
        tokenizer=engine.tokenizer,
        config=Config(),
        next_incarnation=lambda above: max(above + 1, next(lives)),
    )
    async with node.run(), trio.open_nursery() as nursery:
        url = await nursery.start(serve_http, node, HttpConfig(port=0, port_is_default=False))
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
            await until(lambda: node.ready)
            yield client
        nursery.cancel_scope.cancel()


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what must soon be so."""
    with trio.fail_after(10):
        while True:
            if holds():
                return
            await trio.sleep(0.005)


def body(*, stream: bool) -> dict[str, object]:
    """A chat of a long prompt and a short answer."""
    messages = [{"role": "user", "content": PROMPT}]
    return {"model": "simulated", "messages": messages, "max_tokens": 20, "stream": stream}


async def test_second_answer_is_cached_and_explained() -> None:
    """What was expected is what happened; decision, status and peers fit their schemas."""
    async with alone(SimulatedEngine(prefill_tokens_per_s=1e5, decode_tokens_per_s=1e4)) as client:
        first = await client.post(CHAT, json=body(stream=False))
        second = await client.post(CHAT, json=body(stream=False))
        text = [answer.json()["choices"][0]["message"]["content"] for answer in (first, second)]
        assert text[0] == text[1] != ""
        assert first.headers["x-peerinfer-route"] == "local"
        cached = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == int(second.headers["x-peerinfer-expected-cached-tokens"]) > 1000
        request_id = second.headers["x-peerinfer-request-id"]
        decision = (await client.get(f"/peerinfer/v1/requests/{request_id}")).json()
        validator("decision").validate(decision)
        assert (decision["chosen"], decision["cached_tokens"]) == (ME, cached)
        status = (await client.get("/peerinfer/v1/status")).json()
        validator("status").validate(status)
        assert status["requests"]["served_local"] == 2
        peers = (await client.get("/peerinfer/v1/peers")).json()
        validator("peers").validate(peers)


async def test_refused_requests_show_in_the_status() -> None:
    async with alone(SimulatedEngine()) as client:
        await client.post(CHAT, content=b"{", headers={"content-type": "application/json"})
        await client.get("/", headers={"host": "evil.example"})
        assert (await client.get("/peerinfer/v1/status")).json()["dropped"]["http"] == 2


HUGE = "9" * 400


@pytest.mark.parametrize("number", [HUGE, f"-{HUGE}", "1e999", "-1e999", "NaN", "-Infinity"])
@pytest.mark.parametrize(
    "name",
    ["temperature", "top_p", "max_tokens", "max_completion_tokens", "n", "seed", "presence_penalty", "top_k"],
)
async def test_numbers_beyond_measure_are_refused_by_name_or_mean_what_they_say(
    name: str, number: str
) -> None:
    """JSON has whole numbers without end, and Python reads 1e999 as infinite; none of them is a bug of ours.

    A limit on tokens and a seed may be as large as the client likes; the sign of an integer seed is free."""
    messages = '[{"role": "user", "content": "Hi"}]'
    raw = f'{{"model": "simulated", "messages": {messages}, "stop": "e", "{name}": {number}}}'
    engine = SimulatedEngine(prefill_tokens_per_s=1e6, decode_tokens_per_s=1e6, overhead_s=0)
    async with alone(engine) as client:
        answer = await client.post(CHAT, content=raw, headers={"content-type": "application/json"})
    is_fine = number == HUGE and name in ("max_tokens", "max_completion_tokens")
    if is_fine or (name == "seed" and number in (HUGE, f"-{HUGE}")):
        assert answer.status_code == 200
    else:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == (None if number in ("NaN", "-Infinity") else name)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_client_that_leaves_frees_the_engine(stream: bool, phase: str) -> None:
    """The engine would be busy for minutes; it is idle again at once."""
    engine = SimulatedEngine(
        prefill_tokens_per_s=10 if phase == "prefill" else 1e6, decode_tokens_per_s=0.1, overhead_s=0
    )
    async with alone(engine) as client:
        leaving = await trio.open_tcp_stream("127.0.0.1", client.base_url.port)
        await leaving.send_all(raw_post(CHAT, body(stream=stream)))
        await until(lambda: engine.load().running == 1)
        await leaving.aclose()
        await until(lambda: engine.load().running == 0)
