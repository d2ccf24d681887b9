"""Text from tokens: whole characters, whole tokens, no stop string."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peerinfer.engine.token_text import Released, TokenText


def released(text: TokenText, pieces: list[bytes]) -> list[Released]:
    """What comes out for tokens numbered from 0, the flush included."""
    out = []
    for token, piece in enumerate(pieces):
        if not text.stopped:
            out.append(text.feed(token, piece))
    if not text.stopped:
        out.append(text.flush())
    return [item for item in out if item is not None]


def test_a_character_of_several_tokens_appears_with_its_last() -> None:
    text = TokenText()
    assert text.feed(1, b"a\xf0\x9f") is None
    assert text.feed(2, b"\x98") is None
    assert text.feed(3, b"\x80b") == Released("a😀b", (1, 2, 3))


def test_an_unfinished_character_at_the_end_is_none() -> None:
    text = TokenText()
    text.feed(1, b"ok")
    assert text.feed(2, b"\xe2\x82") is None
    assert text.flush() is None


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    assert TokenText().feed(1, b"\xffa") == Released("\ufffda", (1,))


def test_a_stop_across_tokens_is_held_back_and_never_shown() -> None:
    text = TokenText(["END"])
    assert text.feed(1, b"xE") is None, "the whole token waits, so that tokens spell the text"
    assert text.feed(2, b"N") is None
    assert text.feed(3, b"Dy") == Released("x", ())
    assert text.stopped


def test_what_only_looked_like_a_stop_is_shown() -> None:
    text = TokenText(["END"])
    assert text.feed(1, b"EN") is None
    assert text.feed(2, b"ough") == Released("ENough", (1, 2))


def test_the_earliest_of_several_stops_counts() -> None:
    text = TokenText(["cd", "b"])
    assert text.feed(1, b"abcd") == Released("a", ())


def test_a_stop_may_contain_the_beginning_of_another() -> None:
    text = TokenText(["aab"])
    assert text.feed(1, b"aa") is None
    assert text.feed(2, b"a") is None
    assert text.feed(3, b"b") == Released("a", ())
    assert text.stopped


def test_tokens_without_text_wait_for_text() -> None:
    text = TokenText()
    assert text.feed(1, b"") is None
    assert text.feed(2, b"a") == Released("a", (1, 2))


pieces_of_text = st.text(alphabet="aé😀b ", max_size=30).flatmap(
    lambda text: st.lists(st.integers(1, 4), max_size=60).map(lambda sizes: (text, split(text, sizes)))
)


def split(text: str, sizes: list[int]) -> list[bytes]:
    data, pieces = text.encode(), []
    for size in sizes:
        if data:
            pieces.append(data[:size])
            data = data[size:]
    return [*pieces, data] if data else pieces


@given(pieces_of_text, st.lists(st.text(alphabet="aé😀b ", min_size=1, max_size=4), max_size=3))
def test_the_shown_text_is_the_text_up_to_the_first_stop(
    drawn: tuple[str, list[bytes]], stops: list[str]
) -> None:
    """However it is cut into tokens; and tokens shown so far always spell the text shown so far."""
    whole, pieces = drawn
    text = TokenText(stops)
    out = released(text, pieces)
    # The first stop to be complete in the stream wins, the earliest in the text among those.
    ends = [whole.index(stop) + len(stop) for stop in stops if stop in whole]
    shown = "".join(item.text for item in out)
    if not ends:
        assert shown == whole
        assert [token for item in out for token in item.token_ids] == list(range(len(pieces)))
    else:
        assert text.stopped
        assert whole.startswith(shown)
        assert not any(stop in shown for stop in stops)
        assert any(whole[len(shown) :].startswith(stop) for stop in stops)
    spelled, count = "", 0
    for item in out[: len(out) - text.stopped]:
        spelled += item.text
        count += len(item.token_ids)
        assert b"".join(pieces[:count]).decode() == spelled
