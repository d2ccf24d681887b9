"""Four real processes on real libp2p, with the simulated engine: what a swarm promises its users."""

from __future__ import annotations

import concurrent.futures
import json
import queue
import random
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from peerinfer.config import HttpConfig
from tests.e2e.processes import PeerProcess, simulated, swarm, wait_until


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PeerProcess]]:
    tmp_path = tmp_path_factory.mktemp("four")
    args = simulated(tmp_path, "--allow-overrides", prefill_tokens_per_s=4000)
    with swarm(tmp_path, 4, args=args) as nodes:
        yield nodes


def _prefix(seed: int, characters: int = 500) -> str:
    """A text that no other prompt shares a page with."""
    rng = random.Random(seed)
    return f"{seed:08d} " + "".join(rng.choice("abcdefghij klmnop") for _ in range(characters))


def _client(node: PeerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{node.http}/v1", api_key="none", max_retries=0, timeout=60)


def _chat(node: PeerProcess, text: str, **extra: object) -> httpx.Response:
    body = {
        "model": "simulated",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        **extra,
    }
    return node.client.post("/v1/chat/completions", json=body)


def test_the_openai_client_gets_the_same_answer_local_and_forwarded(four: list[PeerProcess]) -> None:
    """Goal: an unmodified client works on any node. Method: warm node 0, then ask all, streaming and not."""
    text = _prefix(1)
    first = _client(four[0]).chat.completions.create(
        model="simulated", messages=[{"role": "user", "content": text}], max_tokens=6
    )
    expected = first.choices[0].message.content
    assert expected
    for node in four:
        for holder in four:
            if holder is not node:
                _wait_until_known(holder, at=node)
        client = _client(node)
        raw = client.chat.completions.with_raw_response.create(
            model="simulated", messages=[{"role": "user", "content": text}], max_tokens=6
        )
        whole = raw.parse()
        assert whole.choices[0].message.content == expected
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        assert whole.usage.prompt_tokens_details.cached_tokens is not None
        assert whole.usage.prompt_tokens_details.cached_tokens >= 480
        stream = client.chat.completions.create(
            model="simulated",
            messages=[{"role": "user", "content": text}],
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert _client(four[3]).models.list().data[0].id == "simulated"


def test_a_prefix_cached_elsewhere_is_used_there_and_the_decision_is_told(four: list[PeerProcess]) -> None:
    """Goal: forwarded by prefix, expected equals actual, and both nodes can say why."""
    prefix = _prefix(2, 2000)
    holder = _by_id(four, _chat(four[1], prefix + " one").headers["x-peerinfer-served-by"])
    entry_node = four[2] if holder is not four[2] else four[3]
    _wait_until_known(holder, at=entry_node)
    answer = _chat(entry_node, prefix + " two")
    assert answer.headers["x-peerinfer-route"] == "forwarded"
    served_by = answer.headers["x-peerinfer-served-by"]
    assert served_by == holder.peer_id
    expected = int(answer.headers["x-peerinfer-expected-cached-tokens"])
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= expected > 1900
    request_id = answer.headers["x-peerinfer-request-id"]
    entry = entry_node.json(f"requests/{request_id}")
    serving = holder.json(f"requests/{request_id}")
    assert (entry["role"], serving["role"]) == ("entry", "serving")
    assert entry["chosen"] == served_by
    assert {c["peer_id"] for c in entry["candidates"]} >= {served_by, entry_node.peer_id}
    assert entry["reason"]
    assert serving["cached_tokens"] == entry["cached_tokens"] >= expected


def _by_id(nodes: list[PeerProcess], peer_id: str) -> PeerProcess:
    return next(node for node in nodes if node.peer_id == peer_id)


def _wait_until_known(holder: PeerProcess, *, at: PeerProcess) -> None:
    """Until a node's estimate of the holder is the holder's tree."""
    wait_until(
        lambda: at.peers()[holder.peer_id]["pages"] == holder.json("status")["cache"]["pages"],
        within_s=10,
        what=f"the tree of {holder.peer_id} known at {at.peer_id}",
    )


def test_garbage_is_refused_and_counted_and_nothing_else_changes(four: list[PeerProcess]) -> None:
    """Goal: bad HTTP bodies and bytes on the libp2p port cost a count each. Method: send them, then ask."""
    node = four[0]
    before = node.json("status")
    for body in (b"", b"{", b"[]", b"\xff" * 100, b'{"model": "simulated", "messages": 3}'):
        answer = node.client.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert _chat(node, "x" * 5_000_000).status_code == 413
    host, port = _tcp(node.addr)
    for garbage in (b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 4096, random.Random(1).randbytes(4096)):
        with socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(garbage)
    after = node.json("status")
    assert after["dropped"]["http"] >= before["dropped"]["http"] + 5
    assert after["requests"] == before["requests"]
    assert after["incarnation"] == before["incarnation"]
    assert len(node.alive_peers()) == 3
    assert _chat(node, _prefix(3)).status_code == 200


def _tcp(addr: str) -> tuple[str, int]:
    parts = addr.split("/")
    return parts[2], int(parts[4])


def test_the_largest_body_that_http_takes_travels_and_one_more_byte_is_refused(
    four: list[PeerProcess],
) -> None:
    """Method: padding that no engine reads, up to the last byte; sent on to a peer."""
    entry, target = four[0], four[3]
    head, tail = b'{"model": "simulated", "prompt": "hello", "max_tokens": 3, "user": "', b'"}'
    padding = b"x" * (HttpConfig().body_bytes_max - len(head) - len(tail))
    headers = {"content-type": "application/json", "x-peerinfer-target": target.peer_id}
    body = head + padding + tail
    answer = entry.client.post("/v1/completions", content=body, headers=headers)
    assert (answer.status_code, answer.headers["x-peerinfer-served-by"]) == (200, target.peer_id)
    assert answer.json()["usage"]["completion_tokens"] == 3
    refused = entry.client.post("/v1/completions", content=body + b" ", headers=headers)
    assert refused.status_code == 413
    assert set(entry.alive_peers()) == {node.peer_id for node in four[1:]}


def test_a_saturated_node_is_left_alone_and_gets_traffic_again_when_idle(tmp_path: Path) -> None:
    """Goal: push-back end to end (paper §3.2). Method: flood node 1's engine with requests pinned to it,
    then send prompts through node 0 whose prefixes only node 1 has, a fresh one each time."""
    args = simulated(tmp_path, "--allow-overrides", "--policy", "longest-prefix", prefill_tokens_per_s=700)
    with swarm(tmp_path, 4, args=args) as nodes:
        entry, target = nodes[0], nodes[1]
        before, during, after = (_prefix(10 + n, 400) for n in range(3))
        pinned = {"x-peerinfer-target": target.peer_id}
        for prefix in (before, during, after):
            target.client.post("/v1/completions", json=_completion(prefix), headers=pinned)
        _wait_until_known(target, at=entry)
        assert _served_by(entry, before + "?") == target.peer_id
        with concurrent.futures.ThreadPoolExecutor(14) as pool:
            floods = [
                pool.submit(
                    httpx.post,
                    f"{target.http}/v1/completions",
                    json=_completion(_prefix(100 + n, 300)),  # all together fit the cache
                    headers=pinned,
                    timeout=120,
                )
                for n in range(14)
            ]
            wait_until(
                lambda: entry.peers()[target.peer_id]["state"] == "paused",
                within_s=5,
                what="push-back known at node 0",
            )
            assert _served_by(entry, during + "?") != target.peer_id
            assert all(flood.result().status_code == 200 for flood in floods)
        took = wait_until(
            lambda: entry.peers()[target.peer_id]["state"] == "alive", within_s=15, what="the pause ends"
        )
        assert took < 5
        assert _served_by(entry, after + "?") == target.peer_id


def _completion(prompt: str) -> dict[str, object]:
    return {"model": "simulated", "prompt": prompt, "max_tokens": 1}


def _served_by(node: PeerProcess, prompt: str) -> str:
    """Who served it; why is printed, for the day that this is a surprise."""
    headers = node.client.post("/v1/completions", json=_completion(prompt)).headers
    print(node.json(f"requests/{headers['x-peerinfer-request-id']}"))
    return headers["x-peerinfer-served-by"]


def test_streams_that_entered_at_living_nodes_survive_a_sigkill(tmp_path: Path) -> None:
    """Goal: 64 streams over four endpoints, one node killed in the middle: those that entered elsewhere
    complete, each token once and in order, also if their first ones came from the dead node.
    Method: each node holds two of eight prefixes, and streams of each prefix enter everywhere.
    Oracle: the simulated engine's answer is a function of its prompt."""
    args = simulated(tmp_path, "--policy", "longest-prefix", prefill_tokens_per_s=2000)
    with swarm(tmp_path, 4, args=args) as nodes:
        prefixes = [_prefix(1000 + group, 300) for group in range(8)]
        for group, prefix in enumerate(prefixes):
            assert _served_by(nodes[group % 4], prefix) == nodes[group % 4].peer_id
        victim = nodes[3]
        for node in nodes[:3]:
            _wait_until_known(victim, at=node)
        prompts = [f"{prefixes[n // 8]} question {n}" for n in range(64)]
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            begun: queue.Queue[tuple[int, str]] = queue.Queue()
            streams = [
                pool.submit(_stream, nodes[n % 4].http, prompts[n], lambda by, n=n: begun.put((n, by)))
                for n in range(64)
            ]
            # Into the middle of it: streams that entered elsewhere are at their first tokens there.
            there = 0
            while there < 2:
                n, by = begun.get(timeout=60)
                there += n % 4 != 3 and by == victim.peer_id
            victim.kill()
            results = [stream.result() for stream in streams]
            wholes = list(pool.map(lambda prompt: _whole(nodes[0], prompt), prompts))
        living = [n for n in range(64) if n % 4 != 3]
        moved = [n for n in living if results[n][2] == victim.peer_id]
        print(f"{len(moved)} of {len(living)} streams had begun at the dead node")
        assert moved
        for n in living:
            text, error, _ = results[n]
            assert (error, text) == (None, wholes[n])
        wait_until(
            lambda: all(victim.peer_id not in n.alive_peers() for n in nodes[:3]),
            within_s=5,
            what="the dead node is suspected",
        )


def _stream(http: str, prompt: str, begun: Callable[[str], None]) -> tuple[str, str | None, str]:
    """The text of a streamed answer, the code of the error that ended it, and who served it; `begun` is told
    the last when the first text is there."""
    text, served_by = "", ""
    body = {"model": "simulated", "prompt": prompt, "max_tokens": 20, "stream": True}
    try:
        with httpx.stream("POST", f"{http}/v1/completions", json=body, timeout=120) as answer:
            served_by = answer.headers.get("x-peerinfer-served-by", "")
            for line in answer.iter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    return text, None, served_by
                event = json.loads(line[6:])
                if "error" in event:
                    return text, event["error"]["code"], served_by
                if not text:
                    begun(served_by)
                text += event["choices"][0]["text"]
    except httpx.HTTPError as error:
        return text, f"{type(error).__name__}", served_by
    return text, "no end", served_by


def _whole(node: PeerProcess, prompt: str) -> str:
    answer = node.client.post(
        "/v1/completions", json={"model": "simulated", "prompt": prompt, "max_tokens": 20}
    )
    return answer.json()["choices"][0]["text"]  # type: ignore[no-any-return]


def test_a_newcomer_sees_all_and_serves_its_share(tmp_path: Path) -> None:
    """Goal: a fifth node that knows one address sees all within 5 s, and gets 1 to 6 of 16 cold prompts."""
    args = simulated(tmp_path)
    with swarm(tmp_path, 4, args=args) as nodes:
        fifth = PeerProcess(tmp_path / "node4", join=nodes[2].addr, args=args)
        nodes.append(fifth)
        others = {node.peer_id for node in nodes[:4]}
        took = wait_until(lambda: others <= fifth.alive_peers(), within_s=15, what="the fifth sees all")
        assert took < 5
        wait_until(
            lambda: all(fifth.peer_id in n.alive_peers() for n in nodes[:4]), within_s=5, what="all see it"
        )
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(
                pool.map(
                    lambda n: httpx.post(
                        f"{nodes[0].http}/v1/completions",
                        json=_completion(_prefix(2000 + n, 491)),
                        timeout=120,
                    ),
                    range(16),
                )
            )
        served = [answer.headers["x-peerinfer-served-by"] for answer in answers]
        assert 1 <= served.count(fifth.peer_id) <= 6


def test_a_killed_node_is_back_in_seconds_with_an_empty_estimate(tmp_path: Path) -> None:
    """Goal: crash recovery (paper §2). Method: SIGKILL, restart on the same identity, same listen port."""
    args = simulated(tmp_path, "--allow-overrides", prefill_tokens_per_s=4000)
    with swarm(tmp_path, 3, args=args) as nodes:
        entry, victim = nodes[0], nodes[2]
        victim.client.post(
            "/v1/completions",
            json=_completion(_prefix(20, 800)),
            headers={"x-peerinfer-target": victim.peer_id},
        )
        _wait_until_known(victim, at=entry)
        assert entry.peers()[victim.peer_id]["pages"] > 40
        old = entry.peers()[victim.peer_id]["incarnation"]
        victim.kill()
        wait_until(
            lambda: victim.peer_id not in entry.alive_peers(), within_s=3, what="the death is noticed at once"
        )
        again = PeerProcess(victim.data_dir, join=entry.addr, args=args)
        nodes[2] = again
        assert again.peer_id == victim.peer_id
        took = wait_until(lambda: again.peer_id in entry.alive_peers(), within_s=15, what="it is back")
        assert took < 5
        record = entry.peers()[again.peer_id]
        assert record["incarnation"] > old
        assert record["pages"] == 0


def test_a_frozen_node_is_suspected_and_forgiven(tmp_path: Path) -> None:
    """Goal: SIGSTOP is noticed in seconds, SIGCONT brings the node back (situation: a peer freezes)."""
    with swarm(tmp_path, 3, args=simulated(tmp_path, prefill_tokens_per_s=4000)) as nodes:
        entry, frozen = nodes[0], nodes[1]
        frozen.signal(signal.SIGSTOP)
        wait_until(
            lambda: frozen.peer_id not in entry.alive_peers(), within_s=10, what="the freeze is noticed"
        )
        assert _chat(entry, _prefix(30)).status_code == 200
        frozen.signal(signal.SIGCONT)
        wait_until(lambda: frozen.peer_id in entry.alive_peers(), within_s=15, what="it is forgiven")
        wait_until(lambda: len(frozen.alive_peers()) == 2, within_s=15, what="it sees the others again")
