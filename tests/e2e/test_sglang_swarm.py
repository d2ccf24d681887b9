"""Two real nodes, each with a real SGLang on the CPU: what routing promises holds with the true engine.

The two servers start once for all tests here (a minute and a half on two cores), which run in their order.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest

from peerinfer.engine.sglang_model import converted_model_path
from tests.e2e.processes import PeerProcess, swarm, wait_until
from tests.engine.comparable import chunks
from tests.real_sglang import START_S, sglang_model, sglang_python

pytestmark = pytest.mark.sglang
PAGE = 16
MODEL = converted_model_path().name
SHOTS = (
    (
        "Which gas do plants take in for photosynthesis?",
        "Oxygen",
        "Carbon dioxide",
        "Nitrogen",
        "Helium",
        "B",
    ),
    ("What is the unit of electrical resistance?", "Volt", "Watt", "Ohm", "Ampere", "C"),
    ("Which planet has the most massive rings?", "Saturn", "Mars", "Venus", "Mercury", "A"),
    ("What does a catalyst lower in a reaction?", "Its yield", "Its mass", "Its heat", "Its barrier", "D"),
    ("At what latitude does the sun stand overhead at an equinox?", "0", "23.4", "66.6", "90", "A"),
)
QUESTIONS = (
    ("Which particle carries a negative charge?", "Proton", "Neutron", "Electron", "Photon"),
    ("What bends light when it enters water?", "Gravity", "Refraction", "Friction", "Diffusion"),
    ("Which metal is liquid at room temperature?", "Iron", "Copper", "Mercury", "Tin"),
    ("How long does the moon need to go around the earth?", "A day", "A week", "A month", "A year"),
    ("What is the centre of an atom called?", "Shell", "Nucleus", "Orbit", "Core"),
    ("Which acid is in the stomach?", "Citric", "Acetic", "Sulphuric", "Hydrochloric"),
    ("What do we call molten rock below the surface?", "Lava", "Magma", "Basalt", "Ash"),
    ("Which force keeps planets in their orbits?", "Magnetism", "Gravity", "Friction", "Tension"),
)


def _asked(question: tuple[str, ...]) -> str:
    choices = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", question[1:5], strict=True))
    return f"{question[0]}\n{choices}\nAnswer:"


def _five_shots(subject: str) -> str:
    """A header as MMLU is asked (paper §4); about 500 tokens."""
    head = f"The following are multiple choice questions (with answers) about {subject}."
    hint = (
        "Read the question twice, strike out the choices that cannot be right, compare those that are left "
        "with what the textbooks of the subject say, and answer with the letter of the best choice alone."
    )
    return "\n\n".join([head, *(f"{hint}\n{_asked(shot)} {shot[5]}" for shot in SHOTS)])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PeerProcess]]:
    tmp_path = tmp_path_factory.mktemp("pair")
    config = tmp_path / "node.toml"
    config.write_text("[engine]\ncache_tokens = 4096\nslots = 4\nhealth_timeout_s = 60\n")
    args = ("--config", str(config), "--engine", "sglang", "--engine-python", sglang_python())
    args += ("--model", sglang_model(), "--allow-overrides", "--", "--device", "cpu")
    with swarm(tmp_path, 2, args=args, meet_within_s=START_S) as nodes:
        for node in nodes:
            wait_until(lambda n=node: _state(n) == "ready", within_s=START_S, what="SGLang is ready")  # type: ignore[misc]
        yield nodes


def _state(node: PeerProcess) -> str:
    return str(node.json("status")["engine_state"])


def _other(nodes: list[PeerProcess], node: PeerProcess) -> PeerProcess:
    return nodes[1] if node is nodes[0] else nodes[0]


def _by_id(nodes: list[PeerProcess], peer_id: str) -> PeerProcess:
    return next(node for node in nodes if node.peer_id == peer_id)


def _sglang(node: PeerProcess) -> psutil.Process:
    """The node's SGLang, the process that it started."""
    (server,) = (
        child
        for child in psutil.Process(node.process.pid).children()
        if "sglang.launch_server" in child.cmdline()
    )
    return server


def _sglang_url(node: PeerProcess) -> str:
    cmdline = _sglang(node).cmdline()
    return f"http://127.0.0.1:{cmdline[cmdline.index('--port') + 1]}"


def _empty_cache(client: httpx.Client) -> None:
    """It is refused while a request runs, and one that was answered may run for a moment yet."""
    wait_until(lambda: client.post("/flush_cache").is_success, within_s=60, what="an empty cache")


def _completion(prompt: str, **more: object) -> dict[str, object]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0} | more


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    prompt_tokens: int
    cached_tokens: int

    @classmethod
    def of(cls, body: dict[str, Any]) -> Answer:
        usage = body["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return cls(body["choices"][0]["text"], usage["prompt_tokens"], cached)


def _wait_until_known(holder: PeerProcess, *, at: PeerProcess) -> None:
    """Until the holder's engine has told what it cached, and the other's estimate is the holder's tree."""

    def known() -> bool:
        pages = holder.json("status")["cache"]["pages"]
        return pages > 0 and at.peers()[holder.peer_id]["pages"] == pages

    wait_until(known, within_s=45, what="the holder's tree known at the other node")


def test_prompts_with_one_prefix_go_where_it_is_and_are_answered_as_by_sglang_itself(
    pair: list[PeerProcess],
) -> None:
    """5-shot prompts of one subject enter at both nodes in turn: all but the first go where the first did;
    what was expected of the cache is what SGLang found there. Texts and hits are those of the same prompts in
    the same order sent to SGLang itself, its cache emptied before."""
    header = _five_shots("science")
    prompts = [f"{header}\n\n{_asked(question)}" for question in QUESTIONS]
    routed, expected, served_by = [], [], []
    for number, prompt in enumerate(prompts):
        entry = pair[number % 2]
        answer = entry.client.post("/v1/completions", json=_completion(prompt)).raise_for_status()
        routed.append(Answer.of(answer.json()))
        expected.append(int(answer.headers["x-peerinfer-expected-cached-tokens"]))
        served_by.append(_by_id(pair, answer.headers["x-peerinfer-served-by"]))
        assert answer.headers["x-peerinfer-route"] == ("local" if served_by[-1] is entry else "forwarded")
        if number == 0:
            _wait_until_known(served_by[0], at=_other(pair, served_by[0]))
    holder = served_by[0]
    assert all(node is holder for node in served_by)
    assert [answer.cached_tokens for answer in routed] == expected
    assert expected[0] == 0
    assert min(expected[1:]) > 350
    url = _sglang_url(holder)
    with httpx.Client(base_url=url, timeout=180, trust_env=False) as client:
        _empty_cache(client)
        direct = [
            Answer.of(client.post("/v1/completions", json=_completion(prompt)).raise_for_status().json())
            for prompt in prompts
        ]
    assert routed == direct


def test_a_chat_is_streamed_through_the_other_node_as_sglang_streams_it(pair: list[PeerProcess]) -> None:
    """With all that is in its chunks but their ids and times."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Say hello to a fox, a crow and a bear, in this order."}],
        "max_tokens": 12,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    entry, server = pair
    forwarded = _stream_of(entry.http, body, {"x-peerinfer-target": server.peer_id})
    with httpx.Client(base_url=_sglang_url(server), timeout=180, trust_env=False) as client:
        _empty_cache(client)
    assert chunks(forwarded) == chunks(_stream_of(_sglang_url(server), body, {}))
    assert forwarded.endswith("data: [DONE]\n\n")
    assert '"completion_tokens":12' in forwarded


def _stream_of(url: str, body: dict[str, Any], headers: dict[str, str]) -> str:
    path = f"{url}/v1/chat/completions"
    answer = httpx.post(path, json=body, headers=headers, timeout=180, trust_env=False)
    return answer.raise_for_status().text


@dataclass(slots=True)
class Stream:
    """A streamed answer as its client sees it."""

    text: str = ""
    error: str | None = None
    served_by: str = ""
    begun: bool = False
    done: bool = False


def test_sglang_killed_under_load_costs_no_stream_and_comes_back(pair: list[PeerProcess]) -> None:
    """Eight streams at a server with four slots, through both nodes (by the paper's rule, since all go where
    the prefix is); SGLang gets SIGKILL when the first have begun. The begun ones go on at the other node,
    which answers the others, too; the peer stops expecting the old cache within a round; SGLang is started
    again and takes part as before."""
    entry, victim = pair
    header = _five_shots("history")
    pinned, by_prefix = {"x-peerinfer-target": victim.peer_id}, {"x-peerinfer-policy": "longest-prefix"}
    warm = victim.client.post("/v1/completions", json=_completion(header), headers=pinned).raise_for_status()
    assert warm.headers["x-peerinfer-served-by"] == victim.peer_id
    _wait_until_known(victim, at=entry)
    incarnation = entry.peers()[victim.peer_id]["incarnation"]
    streams = [Stream() for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [
            pool.submit(
                _stream, pair[n % 2].http, f"{header}\n\n{_asked(QUESTIONS[n])}", by_prefix, streams[n]
            )
            for n in range(8)
        ]
        wait_until(lambda: sum(stream.begun for stream in streams) >= 2, within_s=60, what="some have begun")
        os.kill(_sglang(victim).pid, signal.SIGKILL)
        killed_at = time.monotonic()
        wait_until(
            lambda: entry.peers()[victim.peer_id]["incarnation"] > incarnation,
            within_s=45,
            what="it is known",
        )
        known_s = time.monotonic() - killed_at
        peer = entry.peers()[victim.peer_id]
        assert (peer["pages"], peer["state"], _state(victim)) == (0, "loading", "restarting")
        for job in jobs:
            job.result(timeout=300)
    print(f"known after {known_s:.2f} s;", [(s.error, s.begun, s.served_by[-6:]) for s in streams])
    assert all(stream.done and stream.error is None for stream in streams)
    assert {stream.served_by for stream in streams} == {victim.peer_id, entry.peer_id}
    alone = victim.client.post("/v1/completions", json=_completion("While it is away: ")).raise_for_status()
    assert alone.headers["x-peerinfer-served-by"] == entry.peer_id
    wait_until(lambda: _state(victim) == "ready", within_s=START_S, what="SGLang is ready again")
    wait_until(
        lambda: entry.peers()[victim.peer_id]["state"] == "alive",
        within_s=45,
        what="the peer takes part again",
    )
    again = entry.client.post("/v1/completions", json=_completion(header), headers=pinned).raise_for_status()
    assert again.headers["x-peerinfer-served-by"] == victim.peer_id
    assert again.headers["x-peerinfer-expected-cached-tokens"] == "0"
    assert Answer.of(again.json()).cached_tokens == 0
    hot = entry.client.post("/v1/completions", json=_completion(header), headers=pinned).raise_for_status()
    expected = int(hot.headers["x-peerinfer-expected-cached-tokens"])
    assert Answer.of(hot.json()).cached_tokens == expected > 350


def _stream(http: str, prompt: str, headers: dict[str, str], stream: Stream) -> None:
    body = _completion(prompt, max_tokens=60, stream=True, ignore_eos=True)
    with httpx.stream(
        "POST", f"{http}/v1/completions", json=body, headers=headers, timeout=180, trust_env=False
    ) as answer:
        answer.raise_for_status()
        stream.served_by = answer.headers["x-peerinfer-served-by"]
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                stream.done = True
                continue
            event = json.loads(data)
            if "error" in event:
                stream.error = event["error"]["code"]
            else:
                stream.begun = True
                stream.text += event["choices"][0]["text"]


def test_the_nodes_end_with_their_servers_in_time(pair: list[PeerProcess]) -> None:
    """SIGTERM: status 0 in time, and no process of SGLang is left."""
    node = pair[1]
    server = _sglang(node)
    processes = [server, *server.children(recursive=True)]
    asked_at = time.monotonic()
    node.signal(signal.SIGTERM)
    assert node.process.wait(10) == 0
    assert time.monotonic() - asked_at < 30
    psutil.wait_procs(processes, timeout=30)
    assert not any(process.is_running() for process in processes)
    assert re.search(r"engine=sglang state=ready .*is ready after \d+ s", node.log.read_text())
