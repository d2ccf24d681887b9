"""What a server refuses: whose fault it is, and that its words reach the client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peerinfer.core.types import RequestError
from peerinfer.engine.upstream_error import refusal, stream_error
from peerinfer.node.ports import EngineError
from tests.engine.mock_server import error_json

TOO_LONG = "The input (5031 tokens) is longer than the model's context length (4096 tokens)."
TOO_MANY = "Requested token count exceeds the model's maximum context length of 4096 tokens."


def request_error(status: int, body: Any) -> RequestError:
    error = refusal("chat", status, json.dumps(body).encode())
    assert isinstance(error, RequestError)
    return error


def test_sglangs_refusals_keep_their_message() -> None:
    """Its `code` is only the status."""
    error = request_error(400, error_json("temperature must be a non-negative number", param="temperature"))
    assert error.message == "temperature must be a non-negative number"
    assert (error.status, error.param, error.code) == (400, "temperature", None)
    assert error.type == "invalid_request_error"


def test_openais_refusals_keep_message_param_and_code() -> None:
    inner = {"message": "no such parameter", "param": "top_q", "code": "unknown_parameter", "type": "x"}
    error = request_error(422, {"error": inner})
    assert (error.message, error.status) == ("no such parameter", 422)
    assert (error.param, error.code) == ("top_q", "unknown_parameter")


@pytest.mark.parametrize("message", [TOO_LONG, TOO_MANY])
def test_a_prompt_that_is_too_long_gets_openais_code(message: str) -> None:
    error = request_error(400, error_json(message))
    assert (error.code, error.param, error.message) == ("context_length_exceeded", "messages", message)
    text = refusal("completions", 400, json.dumps(error_json(message)).encode())
    assert isinstance(text, RequestError)
    assert text.param == "prompt"


@pytest.mark.parametrize("status", [429, 503])
def test_too_much_work_is_for_another_node(status: int) -> None:
    """And for nobody's mistake: the client is told to come back."""
    error = request_error(status, error_json("the queue is full"))
    assert (error.status, error.code, error.retry_after_s) == (503, "overloaded", 1.0)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, error_json("CUDA error"), "CUDA error"),
        (502, {"detail": "bad gateway"}, "bad gateway"),
        (401, {"error": "Unauthorized"}, "Unauthorized"),
        (307, {}, "{}"),
    ],
)
def test_the_servers_own_trouble_is_an_engine_error(status: int, body: Any, said: str) -> None:
    error = refusal("chat", status, json.dumps(body).encode())
    assert isinstance(error, EngineError)
    assert said in str(error)


@pytest.mark.parametrize("payload", [b"", b"<html>no</html>", b"[[[", b"\xff", b'{"detail":[{"msg":"x"}]}'])
def test_refusals_of_any_shape_are_understood(payload: bytes) -> None:
    error = refusal("chat", 400, payload)
    assert isinstance(error, RequestError)
    assert error.message


def test_long_messages_are_cut() -> None:
    assert len(request_error(400, error_json("x" * 10**6)).message) == 1000


def test_events_that_are_no_errors_are_none() -> None:
    assert stream_error("chat", {"object": "chat.completion.chunk", "choices": []}) is None


def test_an_error_within_a_stream_is_told_apart_by_its_code() -> None:
    wrong = stream_error("chat", {"error": error_json("Grammar is not supported")})
    assert isinstance(wrong, RequestError)
    assert (wrong.status, wrong.message) == (400, "Grammar is not supported")
    for event in ({"error": error_json("oom", code=500)}, {"error": "boom"}, error_json("x", code=None)):
        assert isinstance(stream_error("chat", event), EngineError)


@pytest.mark.parametrize("reason", ["abort", "stop", "length", None])
def test_an_answer_that_the_server_gave_up_is_its_failure(reason: str | None) -> None:
    """Of any of several choices; it comes with status 200, where others say why they are over."""
    choices = [{"index": 0, "finish_reason": None}, {"index": 1, "finish_reason": reason}]
    error = stream_error("chat", {"object": "chat.completion.chunk", "choices": choices})
    assert isinstance(error, EngineError) == (reason == "abort")


@pytest.mark.parametrize("choices", [None, 7, [], ["x"], [{}]])
def test_choices_that_are_none_are_no_error(choices: object) -> None:
    assert stream_error("chat", {"choices": choices}) is None
