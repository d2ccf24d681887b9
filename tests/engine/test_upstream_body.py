"""What goes on to a server: the client's bytes, but for what the node must set."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peerinfer.core.continuation import Answered, by_text, shortened
from peerinfer.core.types import Endpoint, InferRequest, RequestError
from peerinfer.engine.upstream_body import Outgoing, check_numbers, outgoing

CHAT: dict[str, Any] = {"model": "theirs", "messages": [{"role": "user", "content": "Hi"}]}
ODD_PARTS = [
    b'"response_format": {"type":"json_schema","json_schema":{"schema":{"b":1.0,"a":1e2},"name":"\\u00e9"}}',
    b'"tools" : [ {"type":"function", "function":{"name":"f"}} ]',
    b'"a_field_of_tomorrow": [1.50, {"x" :null}]',
    b'"stop":["\\u2028"], "logprobs":true,"seed":12345678901234567',
]


def request(body: dict[str, Any], endpoint: Endpoint = "chat", raw: bytes | None = None) -> InferRequest:
    made = json.dumps(body).encode() if raw is None else raw
    return InferRequest(id="r7", endpoint=endpoint, body=body, raw=made)


def sent(request: InferRequest, **options: Any) -> tuple[Outgoing, dict[str, Any]]:
    defaults: dict[str, Any] = {"is_sglang": True, "assembles_chats": True}
    made = outgoing(request, model="ours", **(defaults | options))
    return made, json.loads(made.body)


def test_all_that_is_not_ours_arrives_byte_for_byte() -> None:
    """Schemas, tools, unknown fields: their digits, order, escapes and spaces."""
    parts = [b'"model":"theirs"', b'"messages":[{"role":"user","content":"\\u00fc"}]', *ODD_PARTS]
    raw = b"{" + b", ".join(parts) + b"}"
    for stream in (b"", b', "stream": true'):
        whole = raw[:-1] + stream + b"}"
        made, _ = sent(request(json.loads(whole), raw=whole))
        for part in parts[1:]:
            for member in part.split(b", ") if part.startswith(b'"stop"') else [part]:
                assert member in made.body


def test_the_model_is_called_what_the_server_calls_it() -> None:
    assert sent(request(CHAT))[1]["model"] == "ours"
    assert sent(request(CHAT | {"model": "ours"}))[1]["model"] == "ours"


def test_a_request_of_which_nothing_must_be_changed_is_not_changed() -> None:
    body = {"model": "ours", "stream": True, "stream_options": {"include_usage": True}, "prompt": "x"}
    raw = json.dumps(body, indent=3).encode()
    assert sent(request(body, "completions", raw), is_sglang=False)[0].body == raw


def test_a_stream_is_asked_for_usage_and_shows_it_to_who_asked() -> None:
    quiet, body = sent(request(CHAT | {"stream": True}))
    assert (quiet.streamed, quiet.usage_shown) == (True, False)
    assert body["stream_options"] == {"include_usage": True}
    options = {"include_usage": False, "continuous_usage_stats": True}
    quiet, body = sent(request(CHAT | {"stream": True, "stream_options": options}))
    assert not quiet.usage_shown
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    loud, body = sent(request(CHAT | {"stream": True, "stream_options": {"include_usage": True}}))
    assert loud.usage_shown


def test_sglang_is_told_an_id_unless_the_client_chose_one() -> None:
    made, body = sent(request(CHAT))
    assert made.rids == (body["rid"],) == ("chatcmpl-r7",)
    made, body = sent(request({"prompt": "x", "model": "m"}, "completions"))
    assert made.rids == (body["rid"],) == ("cmpl-r7",)
    for rid in ("mine", ["a", "b"]):
        made, body = sent(request(CHAT | {"rid": rid}))
        assert body["rid"] == rid
        assert list(made.rids) == ([rid] if isinstance(rid, str) else rid)
    made, body = sent(request(CHAT), is_sglang=False)
    assert made.rids == ()
    assert "rid" not in body


@pytest.mark.parametrize("own", [{}, {"rid": "mine"}, {"rid": ["a", "b"]}])
def test_a_request_that_comes_again_has_another_name(own: dict[str, Any]) -> None:
    """SGLang knows the first one until it notices that its client left, and refuses it until then.

    An abort that was meant for an earlier one must not hit a later one: SGLang takes names for beginnings.
    """
    made = [sent(request(CHAT | own), attempts_before=count)[0].rids for count in range(12)]
    assert len(set(made)) == 12
    ours = [name for names in made[0 if not own else 1 :] for name in names]
    assert not [each for each in ours if sum(other.startswith(each) for other in ours) > 1]
    assert sent(request(CHAT | own), attempts_before=2)[1]["rid"] == "chatcmpl-2-r7"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 5, "temperature": 0, "seed": 3, "stop": "x", "n": 2, "top_k": 4, "user": "u"},
        {"response_format": {"type": "json_object"}, "logit_bias": {"1": 2}, "presence_penalty": 1},
        {"stream": False, "tools": None, "logprobs": None},
    ],
)
def test_what_can_be_assembled_is_streamed(fields: dict[str, Any]) -> None:
    made, body = sent(request(CHAT | fields))
    assert (made.streamed, made.usage_shown, body["stream"]) == (True, True, True)


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("chat", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("chat", {"logprobs": True}),
        ("chat", {"a_field_of_tomorrow": 1}),
        ("chat", {"chat_template_kwargs": {"enable_thinking": True}}),
        ("completions", {"prompt": ["a", "b"]}),
        ("completions", {"prompt": [[1], [2]]}),
        ("completions", {"prompt": "a", "echo": True}),
        ("completions", {"prompt": "a", "logprobs": 1}),
    ],
)
def test_what_cannot_goes_out_as_it_is(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    made, body = sent(request((CHAT if endpoint == "chat" else {"model": "m"}) | fields, endpoint))
    assert not made.streamed
    assert "stream" not in body
    assert "stream_options" not in body


def test_only_sglangs_answers_are_assembled_and_no_chats_that_it_parses() -> None:
    """No test compares the others'."""
    assert not sent(request(CHAT), is_sglang=False)[0].streamed
    assert not sent(request(CHAT), assembles_chats=False)[0].streamed
    text = request({"model": "m", "prompt": "x"}, "completions")
    assert sent(text, assembles_chats=False)[0].streamed


def test_a_body_that_exists_only_parsed_or_in_another_encoding_is_printed() -> None:
    for raw in (b"", json.dumps(CHAT).encode("utf-16")):
        _, body = sent(request(CHAT, raw=raw))
        assert body["messages"] == CHAT["messages"]
        assert body["model"] == "ours"


@pytest.mark.parametrize(
    ("endpoint", "name", "value"),
    [
        ("completions", "prompt", [1, 100]),
        ("completions", "prompt", [-1]),
        ("completions", "prompt", [[1], [2, 100]]),
        ("chat", "input_ids", [100]),
        ("chat", "stop_token_ids", [-5]),
        ("completions", "stop_token_ids", [100]),
        ("completions", "logprobs", 100),
        ("chat", "top_logprobs", 10**9),
    ],
)
def test_numbers_beyond_the_vocabulary_are_refused_by_name(
    endpoint: Endpoint, name: str, value: object
) -> None:
    """Each of them killed SGLang 0.5.23."""
    with pytest.raises(RequestError) as caught:
        check_numbers(endpoint, {name: value}, vocabulary=100)
    assert (caught.value.status, caught.value.param) == (400, name)


def test_numbers_within_the_vocabulary_pass() -> None:
    check_numbers("completions", {"prompt": [0, 99], "logprobs": 5}, vocabulary=100)
    check_numbers("completions", {"prompt": ["a", "b"], "stop_token_ids": None}, vocabulary=100)
    check_numbers("chat", {"messages": [], "logprobs": True, "top_logprobs": 20}, vocabulary=None)
    check_numbers("completions", {"prompt": [10**6]}, vocabulary=None)


@pytest.mark.parametrize(
    ("endpoint", "body"), [("chat", CHAT), ("completions", {"model": "theirs", "prompt": "Hi"})]
)
def test_the_rest_of_an_answer_comes_as_a_stream_whatever_its_client_reads(
    endpoint: Endpoint, body: dict[str, Any]
) -> None:
    """Goal: it is put behind what is there. A whole chat came in place of all of it: SGLang was not asked to
    stream one that it has to continue."""
    rest = by_text(request(body, endpoint), Answered(text="So", token_ids=None, pieces=1))
    assert rest is not None
    shorter = shortened(rest, 1)
    assert shorter is not None
    for is_sglang in (True, False):
        made, onward = sent(shorter, is_sglang=is_sglang)
        assert made.streamed
        assert not made.usage_shown
        assert onward["stream"] is True
