"""What the benchmarks stand on: an engine without a model that a node takes for SGLang, and workloads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from benchmarks.kit.answer import expected_answer
from benchmarks.kit.client import chat
from benchmarks.kit.engine import PAGE
from benchmarks.kit.events import EventPublisher
from benchmarks.kit.processes import Process, get_json, processes
from benchmarks.kit.vocabulary import TOKENS, make_model, make_tokenizer, spell
from benchmarks.kit.workloads import WORKLOADS, bodies
from peerinfer.core.types import BlockStored
from peerinfer.engine.kv_event_codec import sglang_block_hashes
from tests.engine.served_nodes import alone, until

PROMPT = list(range(5000, 5100))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory = tmp_path_factory.mktemp("kit")
    with processes(directory) as starter:
        yield starter.worker(make_model(directory / "model"), "--prefill", "100000", "--decode", "1000")


async def test_node_takes_the_worker_for_sglang_and_follows_its_cache(worker: Process) -> None:
    """Method: the same chat twice. The second is expected and answered from the cache, by the same count."""
    body = chat(spell(PROMPT), max_tokens=3, stream=False)
    headers = {"content-type": "application/json"}
    async with alone(worker.url) as (client, node):
        first = await client.post("/v1/chat/completions", content=body, headers=headers)
        roles = make_tokenizer().encode("user assistant").ids
        answer = expected_answer([roles[0], *PROMPT, roles[1]], 3)
        assert first.json()["choices"][0]["message"]["content"] == " " + spell(answer)
        usage = first.json()["usage"]
        assert usage["prompt_tokens"] == len(PROMPT) + 2  # and a role before and behind it
        await until(lambda: len(node.context.view.own) >= len(PROMPT) // PAGE)
        second = await client.post("/v1/chat/completions", content=body, headers=headers)
        cached = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == int(second.headers["x-peerinfer-expected-cached-tokens"]) == 96
        assert node.info.kind == "sglang"
        assert node.info.source == "events"
    told = await trio.to_thread.run_sync(get_json, f"{worker.url}/_stats")
    assert (told["requests"], told["cached_tokens"]) == (2, 96)


def test_an_answer_that_broke_off_is_continued_as_if_nothing_had_happened() -> None:
    whole = expected_answer(PROMPT, 10)
    assert expected_answer([*PROMPT, *whole[:4]], 6) == whole[4:]
    assert len(set(whole)) == len(whole), "a token that is missing or doubled shows"


def test_blocks_have_the_names_that_followers_expect() -> None:
    """Two batches, the second one below the first."""
    publisher = EventPublisher()
    names = sglang_block_hashes(PROMPT[: 2 * PAGE], PAGE)
    first = publisher._packed(BlockStored((1,), None, tuple(PROMPT[:PAGE]), PAGE))
    second = publisher._packed(BlockStored((2,), 1, tuple(PROMPT[PAGE : 2 * PAGE]), PAGE))
    assert first["block_hashes"] == [names[0]]
    assert (second["parent_block_hash"], second["block_hashes"]) == (names[0], [names[1]])


def test_a_word_is_a_token() -> None:
    """Routers that see texts and nodes that see tokens see the same prompt."""
    tokens = [0, 1, 26, TOKENS - 1]
    assert make_tokenizer().encode(spell(tokens)).ids == tokens


@pytest.mark.parametrize("name", ["mmlu", "mmlu-skewed", "groups", "chats"])
def test_workloads_come_in_order_and_the_same_each_time(name: str) -> None:
    build = WORKLOADS[name]
    requests = bodies(build(40, 1, None))
    assert requests == bodies(build(40, 1, None))
    assert len(requests) == 40
    times = [due.at_s for due in requests]
    assert times == sorted(times)
    assert {due.entry for due in requests} == {0, 1, 2, 3}


def test_mooncake_needs_its_trace() -> None:
    with pytest.raises(ValueError, match="--data"):
        WORKLOADS["mooncake"](10, 0, None)
