"""Bodies as our own engines read them: what is honoured, what is harmless, what is refused by name."""

from __future__ import annotations

import math

import pytest

from peerinfer.core.types import Endpoint, RequestError
from peerinfer.engine.openai_body import (
    ChatPrompt,
    Message,
    Options,
    TextPrompt,
    TokenPrompt,
    read_options,
    read_prompt,
)

USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "he"}


def refusal(endpoint: Endpoint, body: dict[str, object]) -> RequestError:
    with pytest.raises(RequestError) as caught:  # noqa: PT012 -- which of the two refuses is not fixed
        read_prompt(endpoint, body)
        read_options(endpoint, body)
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"
    return caught.value


def test_an_empty_body_has_openais_defaults() -> None:
    defaults = Options(max_tokens=None, temperature=1.0, top_p=1.0, seed=None, stop=(), ignore_eos=False)
    assert read_options("chat", {}) == defaults
    assert read_options("completions", {}).max_tokens == 16


def test_supported_options_are_read() -> None:
    body = {
        "max_tokens": 7,
        "max_completion_tokens": 5,
        "temperature": 0,
        "top_p": 0.5,
        "seed": -1,
        "stop": "x",
        "n": 1,
    }
    read = Options(max_tokens=5, temperature=0.0, top_p=0.5, seed=-1, stop=("x",), ignore_eos=False)
    assert read_options("chat", body) == read
    assert read_options("chat", {"stop": ["a", "b"]}).stop == ("a", "b")


def test_what_changes_nothing_is_accepted() -> None:
    """Also a parameter nobody supports, as long as it is null or at the value that does nothing."""
    body = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "logprobs": False,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "top_k": -1,
        "n": None,
        "stop": None,
        "seed": None,
        "temperature": None,
        "whatever": None,
    }
    assert read_options("chat", body) == read_options("chat", {})


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2},
        {"n": True},
        {"best_of": 3},
        {"echo": True},
        {"suffix": "!"},
        {"logprobs": 0},
        {"logprobs": True},
        {"presence_penalty": 0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {"5": 1}},
        {"tools": [{}]},
        {"functions": [{}]},
        {"tool_choice": {"type": "function"}},
        {"response_format": {"type": "json_schema"}},
        {"top_k": 40},
        {"cache_salt": "x"},
        {"lora_path": "x"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"temperature": "hot"},
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": True},
        {"temperature": 10**400},
        {"temperature": -(10**400)},
        {"temperature": math.inf},
        {"top_p": 1.1},
        {"top_p": 10**400},
        {"top_p": -math.inf},
        {"max_tokens": 1e999},
        {"n": 10**400},
        {"seed": math.inf},
        {"top_k": 10**400},
        {"presence_penalty": 10**400},
        {"seed": 1.5},
        {"stop": 5},
        {"stop": ["a"] * 5},
        {"stop": ["a", ""]},
        {"stop": "x" * 257},
        {"ignore_eos": "yes"},
        {"unheard_of": 0},
    ],
    ids=lambda body: repr(body)[:40],
)
def test_what_would_change_the_answer_is_refused_by_its_name(body: dict[str, object]) -> None:
    (name,) = body
    assert refusal("completions", {"prompt": "hi"} | body).param == name
    assert name in str(refusal("completions", {"prompt": "hi"} | body))


def test_a_parameter_of_the_other_endpoint_is_refused() -> None:
    assert refusal("chat", {"messages": [USER], "prompt": "x"}).param == "prompt"
    assert refusal("completions", {"prompt": "x", "messages": [USER]}).param == "messages"


def test_completion_prompts_are_text_or_tokens() -> None:
    assert read_prompt("completions", {"prompt": "hé"}) == TextPrompt("hé")
    assert read_prompt("completions", {"prompt": ["hé"]}) == TextPrompt("hé")
    assert read_prompt("completions", {"prompt": [1, 2]}) == TokenPrompt((1, 2))


@pytest.mark.parametrize("prompt", [None, [], 5, [1.5], [True], {"a": 1}, "\ud800"], ids=repr)
def test_other_completion_prompts_are_refused(prompt: object) -> None:
    assert refusal("completions", {"prompt": prompt}).param == "prompt"


@pytest.mark.parametrize("prompt", [["a", "b"], [[1, 2], [3]], [[1, 2]]], ids=repr)
def test_several_prompts_are_refused_with_the_reason(prompt: object) -> None:
    error = refusal("completions", {"prompt": prompt})
    assert error.param == "prompt"
    assert "one prompt per request" in error.message


def test_messages_are_texts_or_lists_of_text_parts() -> None:
    """Parts are joined by a space; `developer` is OpenAI's new name for `system`."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    silent: dict[str, object] = {
        "role": "assistant",
        "content": None,
        "tool_calls": None,
        "refusal": None,
        "annotations": [],
    }
    body = {"messages": [{"role": "developer", "content": parts}, USER, silent]}
    messages = (Message("system", "a b"), Message("user", "hi"), Message("assistant", ""))
    assert read_prompt("chat", body) == ChatPrompt(messages, True, False)


def test_a_partial_answer_can_be_continued() -> None:
    goes_on = {"messages": [USER, ASSISTANT], "continue_final_message": True}
    prompt = read_prompt("chat", goes_on)
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.add_generation_prompt, prompt.continue_final_message) == (False, True)
    both = goes_on | {"add_generation_prompt": True}
    assert refusal("chat", both).param == "continue_final_message"
    assert refusal("chat", goes_on | {"messages": [USER]}).param == "continue_final_message"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([USER, {"role": "tool", "content": "hi"}], "messages[1].role"),
        ([{"role": ["user"], "content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": "\udc00"}], "messages[0].content"),
        ([{"role": "user", "content": "hi", "name": "Bob"}], "messages[0].name"),
        ([{**ASSISTANT, "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
    ],
)
def test_messages_we_cannot_read_are_refused_where_they_are(messages: object, param: str) -> None:
    assert refusal("chat", {"messages": messages}).param == param
