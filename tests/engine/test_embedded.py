"""The embedded engine beyond the contract: failures, cancellation without pause, real text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from peerinfer.core.types import EngineState, RequestError
from peerinfer.engine.embedded import EmbeddedEngine
from peerinfer.engine.embedded_tokenizer import EmbeddedTokenizer
from peerinfer.engine.llama import Advance, Model, Slot
from peerinfer.engine.model_store import DEFAULT_MODEL
from peerinfer.node.ports import EngineError
from tests.engine.support import MirrorSink, ask, chat, default_model, make_embedded, request
from tests.engine.test_gguf import model as model_file


async def test_a_failure_of_llama_is_an_error_and_the_slot_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: one step is given a position with a gap, which llama.cpp itself refuses."""
    advance = Slot.advance
    broken: list[bool] = []

    def break_once(slot: Slot, tokens: Sequence[int], begin: int, *, draw: bool) -> Advance:
        gap = 64 if draw and not broken else 0
        broken.append(True)
        return advance(slot, tokens, begin + gap, draw=draw)

    engine, sink = make_embedded(slots=1), MirrorSink()
    async with engine.run(sink):
        before = await ask(engine, chat("How are you?"))
        with monkeypatch.context() as patch:
            patch.setattr(Slot, "advance", break_once)
            with pytest.raises(EngineError, match=r"llama\.cpp failed"):
                await ask(engine, chat("How are you?"))
        assert (await ask(engine, chat("How are you?"))).text == before.text
        assert (engine.load().running, engine.load().queued) == (0, 0)
        assert sink.agrees_with(engine)


async def test_a_model_that_cannot_be_loaded_makes_the_engine_fail(tmp_path: Path) -> None:
    """Its header can be read, so the node starts and serves through its peers; requests here fail."""
    path = tmp_path / "model.gguf"
    path.write_bytes(default_model().read_bytes())
    engine, sink = EmbeddedEngine(model=path), MirrorSink()
    path.write_bytes(default_model().read_bytes()[:3_000_000])
    async with engine.run(sink):
        with pytest.raises(EngineError, match=r"model\.gguf"):
            await ask(engine, chat("Hello"))
        with pytest.raises(EngineError, match=r"model\.gguf"):
            await engine.tokenizer.encode("chat", chat("Hello"))
        assert sink.states == [EngineState.LOADING, EngineState.FAILING]
        assert "model.gguf" in sink.details[-1]


def test_what_is_no_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"hello")
    with pytest.raises(EngineError):
        EmbeddedEngine(model=path)
    path.write_bytes(model_file(window=128))
    with pytest.raises(EngineError, match="sliding-window"):
        EmbeddedEngine(model=path)
    with pytest.raises(EngineError, match="page size"):
        EmbeddedEngine(model=default_model(), page_size=24)


async def test_weights_whose_pages_depend_on_the_chunk_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: pages that were computed one token at a time get another last byte, as with F16 weights."""
    advance = Slot.advance

    def drift(slot: Slot, tokens: Sequence[int], begin: int, *, draw: bool) -> Advance:
        step = advance(slot, tokens, begin, draw=draw)
        pages = tuple(page[:-1] + b"?" for page in step.pages) if len(tokens) == 1 else step.pages
        return replace(step, pages=pages)

    monkeypatch.setattr(Slot, "advance", drift)
    engine, sink = make_embedded(), MirrorSink()
    async with engine.run(sink):
        with pytest.raises(EngineError, match="Q8_0"):
            await ask(engine, chat("Hello"))
        assert sink.states == [EngineState.LOADING, EngineState.FAILING]


def test_the_fingerprint_is_known_before_the_engine_starts() -> None:
    one, other = EmbeddedEngine(model=default_model()), EmbeddedEngine(model=default_model(), page_size=32)
    assert one.info.model == DEFAULT_MODEL
    names = {"tokenizer", "chat_template", "config", "weights", "page_size", "format"}
    assert set(one.info.fingerprint_fields) == names
    assert all(one.info.fingerprint_fields.values())
    differing = {
        name for name in names if one.info.fingerprint_fields[name] != other.info.fingerprint_fields[name]
    }
    assert differing == {"page_size"}


async def test_a_prompt_cancelled_in_prefill_leaves_the_pages_it_finished() -> None:
    engine, sink = make_embedded(slots=1), MirrorSink()
    body = chat("A fox saw a bunch of ripe grapes. " * 20)
    async with engine.run(sink):
        async with engine.run_infer(request(body)):
            with trio.fail_after(60):
                await sink.stored.wait()
        left = sink.promised_tokens(await engine.tokenizer.encode("chat", body))
        assert left > 0
        assert (await ask(engine, body)).cached_tokens == left


async def test_a_real_model_ends_its_answer_by_itself() -> None:
    """And speaks sense: the chat template and the tokeniser are the model's own."""
    engine = make_embedded()
    async with engine.run(MirrorSink()):
        body = chat("What is the capital of France? Answer in one short sentence.", max_tokens=60)
        answered = await ask(engine, body)
        assert "Paris" in answered.text
        assert answered.finish_reason == "stop"
        assert answered.end is not None
        assert answered.end.usage.completion_tokens == len(answered.token_ids)


async def test_a_chat_and_its_text_have_the_same_tokens() -> None:
    """Situation 17: special tokens that are spelled out are special tokens."""
    engine = make_embedded()
    spelled = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"
    )
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]
    async with engine.run(MirrorSink()):
        as_chat = await engine.tokenizer.encode("chat", {"messages": messages})
        assert as_chat == await engine.tokenizer.encode("completions", {"prompt": spelled})


async def test_a_model_without_a_chat_template_serves_completions_only() -> None:
    """And one whose template is no template cannot be used at all."""
    model = Model(default_model())
    tokenizer = EmbeddedTokenizer(chat_template=None, context_tokens_max=100)
    tokenizer.attach(model)
    assert await tokenizer.encode("completions", {"prompt": "Hello"})
    with pytest.raises(RequestError, match="no chat template"):
        await tokenizer.encode("chat", chat("Hello"))
    with pytest.raises(EngineError, match="chat template is broken"):
        EmbeddedTokenizer(chat_template="{% for %}", context_tokens_max=100).attach(model)
    model.close()


async def test_characters_of_several_tokens_come_whole() -> None:
    engine = make_embedded()
    async with engine.run(MirrorSink()):
        body = {"prompt": "🦊🍇🦊🍇🦊🍇🦊🍇🦊🍇🦊", "max_tokens": 24, "ignore_eos": True}
        answered = await ask(engine, body, "completions")
        assert any(ord(character) > 0xFFFF for character in answered.text)
        assert "\ufffd" not in answered.text
        assert any(len(chunk.token_ids or ()) > 1 for chunk in answered.chunks)


async def test_without_a_seed_answers_differ_and_with_one_they_follow_it() -> None:
    engine = make_embedded()
    async with engine.run(MirrorSink()):
        drawn = {
            seed: (
                await ask(engine, chat("Tell me a story.", temperature=1.0, seed=seed, max_tokens=12))
            ).text
            for seed in (1, 2, None)
        }
        again = await ask(engine, chat("Tell me a story.", temperature=1.0, seed=2, max_tokens=12))
    assert again.text == drawn[2]
    assert len(set(drawn.values())) == 3
