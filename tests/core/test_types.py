"""The one type with behaviour: an error as OpenAI's clients read it."""

from peerinfer.core.types import RequestError


def test_a_request_error_says_who_has_to_act() -> None:
    wrong = RequestError("no such parameter", param="foo", code="unknown")
    assert (wrong.type, wrong.status, wrong.param, wrong.code) == (
        "invalid_request_error",
        400,
        "foo",
        "unknown",
    )
    busy = RequestError("try again", status=503, retry_after_s=1.0)
    assert (busy.type, busy.retry_after_s, str(busy)) == ("server_error", 1.0, "try again")
