"""An answer as its client gets it, whoever gives it: what is held back, noted, and made one stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peerinfer.core.answer import Answer
from peerinfer.core.seam import Seam
from peerinfer.core.stream_json import ends_answer, says_something
from peerinfer.core.types import Chunk, End, Endpoint, InferRequest, Usage

END = End(usage=Usage(prompt_tokens=2, completion_tokens=3), cached_tokens=1)


def request(endpoint: Endpoint = "chat", *, known: bool = True, **body: object) -> InferRequest:
    return InferRequest(
        id="r", endpoint=endpoint, body={"stream": True, **body}, token_ids=(1, 2) if known else None
    )


def chunk(
    text: str = "",
    *tokens: int,
    role: bool = False,
    reason: str | None = None,
    name: str = "first",
    **delta: object,
) -> Chunk:
    content: dict[str, object] = {"role": "assistant"} if role else {}
    content |= {"content": text} if text or role else {}
    choice = {"index": 0, "delta": content | delta, "logprobs": None, "finish_reason": reason}
    body = {"id": name, "created": 1 if name == "first" else 2, "choices": [choice]}
    sse_json = json.dumps(body, separators=(",", ":")).encode()
    return Chunk(sse_json=sse_json, text=text, token_ids=tokens or None)


def said(chunks: list[Chunk | End]) -> list[Any]:
    return [json.loads(item.sse_json) if isinstance(item, Chunk) else item for item in chunks]


def test_chunks_go_out_as_they_come_and_the_finish_with_the_end() -> None:
    answer = Answer(request())
    first, second, finish = chunk("a", 1, role=True), chunk("b", 2), chunk(reason="stop")
    assert answer.take(first) == [first]
    assert answer.take(second) == [second]
    assert answer.take(finish) == []
    assert answer.take(END) == [finish, END]
    assert answer.over


def test_a_beginning_that_says_nothing_waits_for_something_to_say() -> None:
    """Until then the answer has not begun, and can begin anew at another engine."""
    answer = Answer(request(tools=[{}]))
    role, text = chunk(role=True), chunk("a", 1)
    assert answer.take(role) == []
    assert not answer.begun
    assert not answer.broke()
    assert answer.take(role) == []
    assert answer.take(text) == [role, text]
    assert answer.begun
    assert answer.uncarried == "tools"


def test_what_the_client_has_is_noted() -> None:
    answer = Answer(request())
    for each in (chunk("a", 1), chunk("bc", 2, 3), chunk("unsaid", 4, reason="stop")):
        answer.take(each)
    assert answer.answered.text == "abc"
    assert answer.answered.token_ids == (1, 2, 3)
    assert answer.answered.pieces == 2
    assert answer.broke(), "it had brought something"
    assert not answer.broke(), "the next engine has not"


def test_one_piece_without_tokens_and_there_is_only_text() -> None:
    answer = Answer(request())
    answer.take(chunk("a", 1))
    answer.take(chunk("b"))
    answer.take(chunk("c", 3))
    assert answer.answered.token_ids is None


def test_a_piece_of_nothing_in_the_middle_is_passed_on_and_is_no_hindrance() -> None:
    answer = Answer(request())
    answer.take(chunk("a", 1))
    assert answer.take(chunk()) == [chunk()]
    assert answer.uncarried is None


def test_what_is_more_than_text_cannot_be_continued() -> None:
    answer = Answer(request())
    answer.take(chunk("a", 1))
    assert answer.uncarried is None
    answer.take(chunk(reasoning_content="hm"))
    assert answer.uncarried == "an answer of more than text"


def test_an_answer_that_nobody_streams_waits_for_its_end_if_it_could_not_be_continued() -> None:
    answer = Answer(request(stream=False, n=2))
    chunks = [chunk("a", 1), chunk("b", 2), chunk(reason="stop")]
    assert [answer.take(each) for each in chunks] == [[], [], []]
    answer.broke()
    assert not answer.begun
    for each in chunks:
        answer.take(each)
    assert answer.take(END) == [*chunks, END]


def test_pieces_of_a_whole_answer_wait_for_its_end() -> None:
    answer = Answer(request(stream=False))
    pieces = [Chunk(sse_json=b'{"half', whole=True), Chunk(sse_json=b'":1}', whole=True)]
    assert [answer.take(each) for each in pieces] == [[], []]
    assert answer.take(END) == [*pieces, END]


def test_two_engines_make_one_stream() -> None:
    answer = Answer(request())
    answer.take(chunk("a", 1, role=True))
    answer.take(chunk("b", 2))
    answer.broke()
    answer.goes_on((1, 2, 1, 2))
    assert answer.count == 2
    out = answer.take(chunk("c", 3, role=True, name="second"))
    assert said(out) == said([chunk("c", 3)])
    assert answer.take(chunk(reason="length", name="second")) == []
    usage = Usage(prompt_tokens=4, completion_tokens=7)
    out = answer.take(End(usage=usage, cached_tokens=4))
    whole = End(usage=Usage(prompt_tokens=2, completion_tokens=9), cached_tokens=2)
    assert said(out) == said([chunk(reason="length"), whole])
    assert answer.answered.token_ids == (1, 2, 3)


def test_the_beginning_of_a_second_stream_is_dropped() -> None:
    """Also where it comes with the finish: then the finish alone goes out."""
    answer = Answer(request())
    answer.take(chunk("a", 1, role=True))
    answer.goes_on((1, 2, 1))
    assert answer.take(chunk(role=True, name="second")) == []
    assert answer.take(chunk(role=True, reason="stop", name="second")) == []
    assert said(answer.take(END))[0] == said([chunk(reason="stop")])[0]


def test_usage_in_the_stream_counts_the_whole_answer() -> None:
    answer = Answer(request())
    answer.take(chunk("a", 1))
    answer.goes_on((1, 2, 1))
    details = {"cached_tokens": 3}
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "prompt_tokens_details": details}
    sse_json = json.dumps({"id": "second", "choices": [], "usage": usage}).encode()
    assert answer.take(Chunk(sse_json=sse_json)) == []
    last = said(answer.take(END))[0]
    assert last["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 6,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_usage_is_made_of_what_is_known() -> None:
    """A prompt whose tokens nobody could tell: the second engine's word, less what was answered before."""
    answer = Answer(request(known=False))
    for text in "abc":
        answer.take(chunk(text))
    answer.goes_on(None)
    sse_json = b'{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":"?"}}'
    answer.take(Chunk(sse_json=sse_json))
    counted, end = said(answer.take(End(usage=Usage(prompt_tokens=10, completion_tokens=1), cached_tokens=9)))
    assert (counted["usage"]["prompt_tokens"], counted["usage"]["completion_tokens"]) == (7, 3)
    assert end == End(usage=Usage(prompt_tokens=7, completion_tokens=4), cached_tokens=7)


def test_a_stop_string_that_lies_across_the_seam_ends_the_answer() -> None:
    """The first engine has streamed its beginning, and the second does not know it."""
    answer = Answer(request(stop=["xSTOP", "never"]))
    answer.take(chunk("ab xST", 1, role=True))
    answer.goes_on((1, 2, 1))
    assert said(answer.take(chunk("O", 2, name="second"))) == said([chunk("O", 2)])
    out = said(answer.take(chunk("P, and more", 3, name="second")))
    assert out[0] == said([chunk(reason="stop")])[0]
    assert out[1] == End(usage=Usage(prompt_tokens=2, completion_tokens=2), cached_tokens=0)
    assert answer.over


@pytest.mark.parametrize(
    ("before", "after"), [("ab", ["STOP"]), ("aST", ["x", "OP"]), ("aS", ["xxxxx", "STOP"])]
)
def test_a_stop_string_behind_the_seam_is_the_engines_matter(before: str, after: list[str]) -> None:
    seam = Seam({}, before=before, stops=("STOP",), count=1, prompt_tokens=1)
    assert not any(seam.stopped(text) for text in after)


def test_an_answer_that_is_as_long_as_it_may_be_needs_no_engine_for_its_end() -> None:
    answer = Answer(request("completions"))
    sse_json = b'{"id":"first","created":1,"choices":[{"index":0,"text":"a"}]}'
    answer.take(Chunk(sse_json=sse_json, text="a", token_ids=(1,)))
    finish, end = said(answer.finish("length"))
    assert finish == {
        "id": "first",
        "created": 1,
        "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}],
    }
    assert end.usage == Usage(prompt_tokens=2, completion_tokens=1)
    assert answer.over


def test_a_chunk_that_is_no_object_passes_the_seam_as_it_is() -> None:
    """Whoever reads it will say so."""
    answer = Answer(request())
    answer.take(chunk("a", 1))
    answer.goes_on((1, 2, 1))
    for odd in (Chunk(sse_json=b"[]", text="b"), Chunk(sse_json=b"{", text="c")):
        assert answer.take(odd) == [odd]
    bare = Chunk(sse_json=b'{"choices":{}}', text="d")
    assert said(answer.take(bare)) == [{"choices": {}}]
    bare = Chunk(sse_json=b'{"choices":[3,{"delta":4}]}', text="e")
    assert said(answer.take(bare)) == [{"choices": [3, {"delta": 4}]}]


def test_only_a_finish_reason_outside_of_strings_ends_an_answer() -> None:
    assert ends_answer(chunk(reason="stop").sse_json)
    assert not ends_answer(chunk('"finish_reason":"stop"').sse_json)
    assert not ends_answer(chunk('"choices":[]').sse_json)


def test_whatever_is_not_understood_says_something() -> None:
    assert says_something(b"<html>")
    assert says_something(b'{"error":1}')
    assert says_something(b'{"choices":[1]}')
    assert says_something(b'{"choices":[{"delta":1}]}')
    assert says_something(b'{"choices":[{"text":"a"}]}')
    assert not says_something(b'{"choices":[{"index":1,"delta":{"role":"assistant","content":""}}]}')
