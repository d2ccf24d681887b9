"""What request continues a broken answer: by tokens, by text, or by nothing."""

from __future__ import annotations

import json

import pytest

from peerinfer.core.continuation import Answered, by_text, by_tokens, shortened, stops, uncarried
from peerinfer.core.types import Endpoint, InferRequest

ASKED = {"role": "user", "content": "hi"}
SO_FAR = Answered(text="Hello, w", token_ids=(5, 6, 7), pieces=3)


def request(
    endpoint: Endpoint = "chat", *, token_ids: tuple[int, ...] | None = (1, 2), **body: object
) -> InferRequest:
    return InferRequest(
        id="r", endpoint=endpoint, body=body, raw=json.dumps(body).encode(), token_ids=token_ids
    )


def test_what_a_prompt_and_its_answer_say_is_carried() -> None:
    body = {"messages": [ASKED], "temperature": 0.7, "seed": 1, "stop": ["x"], "max_tokens": 9, "n": None}
    assert uncarried(body) is None


@pytest.mark.parametrize(
    ("name", "harmless", "value"),
    [
        ("n", 1, 2),
        ("logprobs", False, True),
        ("logprobs", None, 0),
        ("presence_penalty", 0, 0.5),
        ("frequency_penalty", 0.0, -1),
        ("repetition_penalty", 1, 1.1),
        ("tools", [], [{"type": "function"}]),
        ("response_format", {"type": "text"}, {"type": "json_object"}),
        ("echo", False, True),
        ("regex", None, "a+"),
        ("something_new", None, 1),
    ],
)
def test_state_that_text_does_not_carry_is_named(name: str, harmless: object, value: object) -> None:
    """Unless it is at a value that asks for nothing; what is not known may be a state."""
    assert uncarried({"prompt": "x", name: harmless}) is None
    assert uncarried({"prompt": "x", name: value}) == name


def test_tokens_go_behind_the_prompts_and_the_body_stays() -> None:
    onward = by_tokens(request(messages=[ASKED]), SO_FAR)
    assert onward is not None
    assert (onward.token_ids, onward.answered_token_ids) == ((1, 2, 5, 6, 7), (5, 6, 7))
    assert onward.body == {"messages": [ASKED]}


def test_without_the_prompts_or_the_answers_tokens_there_is_no_way_by_them() -> None:
    assert by_tokens(request(token_ids=None), SO_FAR) is None
    assert by_tokens(request(), Answered(text="Hello, w", token_ids=None, pieces=3)) is None


@pytest.mark.parametrize("prompt", ["Say: ", ["Say: "]])
def test_text_goes_behind_a_completions_prompt(prompt: object) -> None:
    onward = by_text(request("completions", prompt=prompt), SO_FAR)
    assert onward is not None
    assert onward.body["prompt"] == "Say: Hello, w"
    assert json.loads(onward.raw) == onward.body
    assert onward.token_ids is None, "to be told anew"


def test_text_becomes_the_last_message_of_a_chat_to_be_continued() -> None:
    onward = by_text(request(messages=[ASKED]), SO_FAR)
    assert onward is not None
    assert onward.body == {
        "messages": [ASKED, {"role": "assistant", "content": "Hello, w"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }


def test_text_grows_a_message_that_is_being_continued() -> None:
    begun = {"role": "assistant", "content": "Oh! "}
    onward = by_text(request(messages=[ASKED, begun], continue_final_message=True), SO_FAR)
    assert onward is not None
    assert onward.body["messages"] == [ASKED, {"role": "assistant", "content": "Oh! Hello, w"}]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("completions", {"prompt": [1, 2, 3]}),
        ("completions", {"prompt": ["a", "b"]}),
        ("chat", {"messages": []}),
        ("chat", {"messages": "no list"}),
        ("chat", {"messages": ["no object"]}),
        ("chat", {"messages": [ASKED], "add_generation_prompt": False}),
        ("chat", {"messages": [ASKED, {"role": "assistant", "content": "Oh!"}]}),
        ("chat", {"messages": [{"role": "assistant", "content": []}], "continue_final_message": True}),
    ],
)
def test_some_prompts_take_no_text(endpoint: Endpoint, body: dict[str, object]) -> None:
    assert by_text(request(endpoint, **body), SO_FAR) is None


@pytest.mark.parametrize(
    ("endpoint", "before", "after"),
    [
        ("chat", {}, {}),
        ("chat", {"max_tokens": 10}, {"max_tokens": 7}),
        (
            "chat",
            {"max_completion_tokens": 10, "max_tokens": 2},
            {"max_completion_tokens": 7, "max_tokens": 1},
        ),
        ("completions", {}, {"max_tokens": 13}),
        ("completions", {"max_tokens": None}, {"max_tokens": 13}),
        ("completions", {"max_tokens": 4, "min_tokens": 2}, {"max_tokens": 1, "min_tokens": 0}),
        ("completions", {"max_tokens": 9, "min_tokens": 5}, {"max_tokens": 6, "min_tokens": 2}),
        ("chat", {"max_tokens": 3}, None),
        ("completions", {"max_tokens": 2}, None),
        ("chat", {"max_completion_tokens": 3, "max_tokens": 9}, None),
    ],
)
def test_lengths_are_corrected_by_what_is_there(
    endpoint: Endpoint, before: dict[str, object], after: dict[str, object] | None
) -> None:
    """Three tokens are; None means that nothing is left to answer."""
    shorter = shortened(request(endpoint, **before), 3)
    assert (None if shorter is None else shorter.body) == (
        after if after is None else after | {"stream": True}
    )
    if shorter is not None:
        assert json.loads(shorter.raw) == shorter.body


def test_stop_strings_are_one_or_several_or_none() -> None:
    assert stops({}) == ()
    assert stops({"stop": "END"}) == ("END",)
    assert stops({"stop": ["a", "", 3, "b"]}) == ("a", "b")
