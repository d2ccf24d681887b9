"""The engines' contract, kept by SGLang: the same tests as for our own engines, against a real server.

One server runs for the whole session, so every test begins with an empty cache, and an engine is one that is
attached to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from peerinfer.config import EngineConfig
from peerinfer.engine.sglang import SGLangEngine
from peerinfer.engine.sglang_build import build_attached
from tests.contract import test_engine_contract as contract
from tests.engine.support import MirrorSink
from tests.real_sglang import RealServer, empty_cache

pytestmark = pytest.mark.sglang

KEPT: tuple[Callable[..., Awaitable[None]], ...] = (
    contract.test_running_does_not_wait_for_the_model,
    contract.test_chat_chunks_are_openais,
    contract.test_completion_chunks_are_openais,
    contract.test_a_prompt_of_tokens_is_answered_as_its_text,
    contract.test_greedy_output_is_the_same_cold_and_cached,
    contract.test_a_slow_reader_keeps_no_slot,
    contract.test_stop_strings_end_the_answer_and_are_not_shown,
    contract.test_prompts_that_are_too_long_are_refused_with_the_limit,
    contract.test_an_engine_that_stops_breaks_its_answers_off_with_an_error,
)
SERVER = "one server with slots of its own is shared by all tests: tests/engine/test_sglang_answers.py"
NOT_APPLICABLE = {
    contract.test_a_seed_makes_an_answer_repeatable: "it heeds seeds with --enable-deterministic-inference",
    contract.test_generated_tokens_are_cached_too: "SGLang's streams tell no token ids",
    contract.test_the_mirror_equals_the_cache_after_any_requests: "its cache cannot be looked into",
    contract.test_all_events_of_a_request_come_before_its_end: "those of the answer's own tokens may be late",
    contract.test_leaving_during_prefill_frees_the_slot_at_once: SERVER,
    contract.test_leaving_a_stream_frees_the_slot_at_once: SERVER,
    contract.test_concurrent_requests_get_the_answers_they_get_alone: "bfloat16 sums depend on the batch",
    contract.test_work_counts_from_the_moment_it_is_handed_over: "only the node's tokens tell it the work",
    contract.test_text_and_tokens_of_chunks_belong_together: "SGLang's streams tell no token ids",
    contract.test_an_answer_ends_when_the_context_is_full: "SGLang refuses what would not fit",
    contract.test_prompts_without_a_token_or_with_unknown_ones_are_refused: "it names no parameter",
    contract.test_what_would_change_the_answer_is_refused_by_name: "SGLang can do all of it",
    contract.test_an_engine_can_run_again_with_an_empty_cache: "the server lives on, and so does its cache",
}


@pytest.fixture
async def engines(sglang_server: RealServer) -> list[SGLangEngine]:
    """Two, since a test may compare."""
    config = EngineConfig(kind="sglang", url=sglang_server.url)
    return [(await build_attached(config))[0] for _ in range(2)]


@pytest.fixture
async def empty(sglang_server: RealServer) -> None:
    async with httpx.AsyncClient(base_url=sglang_server.url, timeout=180, trust_env=False) as client:
        await empty_cache(client)


@pytest.mark.parametrize("promise", KEPT, ids=lambda promise: promise.__name__.removeprefix("test_"))
async def test_sglang_keeps_the_promise(
    promise: Callable[..., Awaitable[None]], engines: list[SGLangEngine], empty: None
) -> None:
    left = iter(engines)
    await promise(make=lambda **_: next(left), sink=MirrorSink())


def test_every_promise_is_kept_or_it_is_said_why_not() -> None:
    promises = {
        test for name, test in inspect.getmembers(contract, inspect.isfunction) if name.startswith("test_")
    }
    mine: set[Any] = {*KEPT, *NOT_APPLICABLE}
    assert promises == mine
