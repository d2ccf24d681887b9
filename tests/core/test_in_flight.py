"""What was given to a node and has not ended: its work until the node tells, its pages until the end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from peerinfer.core.in_flight import InFlight
from peerinfer.core.types import Given

ONE, TWO = Given(1, 100), Given(1, 30)


def test_work_counts_until_the_node_tells_of_it() -> None:
    book = InFlight()
    book.sent(ONE, ())
    book.sent(TWO, ())
    assert book.unsettled == Given(2, 130)
    book.arrived(TWO)
    assert book.unsettled == ONE
    book.arrived_in_all(Given(2, 130))
    assert book.unsettled == Given()


def test_replies_that_overtake_each_other_count_nothing_twice() -> None:
    """Each says what is in of all that was given, whichever request it answers."""
    book = InFlight()
    for _ in range(3):
        book.sent(ONE, ())
    book.arrived_in_all(Given(3, 300))  # the first acceptance: the load that it told has all three
    assert book.unsettled == Given()
    book.sent(TWO, ())
    assert book.unsettled == TWO


def test_what_has_ended_is_no_work_whether_it_had_arrived_or_not() -> None:
    book = InFlight()
    book.sent(ONE, ())
    book.sent(TWO, ())
    book.arrived_in_all(ONE)
    book.ended(TWO, (), had_arrived=False)
    assert (book.given, book.unsettled) == (ONE, Given())
    book.sent(TWO, ())
    book.ended(ONE, (), had_arrived=True)
    assert (book.given, book.unsettled) == (TWO, TWO)


def test_a_node_that_tells_nonsense_is_believed_until_all_has_ended() -> None:
    book = InFlight()
    book.sent(ONE, ())
    book.arrived_in_all(Given(10**6, 10**9))
    book.ended(ONE, (), had_arrived=True)
    book.sent(TWO, ())
    assert book.unsettled == TWO


def test_pages_in_flight_are_matched_behind_those_that_are_cached() -> None:
    book = InFlight()
    assert book.match_prefix([1, 2, 3], 1) == 1
    assert not book.has_pages
    book.sent(ONE, [1, 2, 3, 4])
    assert book.has_pages
    assert book.match_prefix([1, 2, 3, 9], 0) == 3
    assert book.match_prefix([1, 2, 3, 4], 4) == 4
    assert book.match_prefix([7, 8], 0) == 0
    assert book.match_prefix([], 0) == 0


def test_pages_stay_in_flight_as_long_as_one_request_has_them() -> None:
    book = InFlight()
    book.sent(ONE, [1, 2, 3])
    book.sent(ONE, [1, 2, 4])
    book.ended(ONE, [1, 2, 3], had_arrived=False)
    assert book.match_prefix([1, 2, 3], 0) == 2
    book.ended(ONE, [1, 2, 4], had_arrived=False)
    assert not book.has_pages


def test_the_end_of_a_request_that_is_not_known_changes_nothing() -> None:
    """Its peer was forgotten meanwhile, and is known again."""
    book = InFlight()
    book.ended(ONE, [1, 2], had_arrived=True)
    assert (book.given, book.unsettled, book.has_pages) == (Given(), Given(), False)


@settings(deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=6),
    asked=st.tuples(st.integers(0, 3), st.integers(0, 6)),
    cached=st.integers(0, 6),
)
def test_a_match_is_the_longest_of_all_that_is_in_flight(
    requests: list[tuple[int, int]], asked: tuple[int, int], cached: int
) -> None:
    """Prompts of a tree in which each fork has its own keys, against the plain definition."""

    def prompt(fork: tuple[int, int]) -> list[int]:
        branch, length = fork
        return [page if page < 2 else 100 * branch + page for page in range(length)]

    book = InFlight()
    for fork in requests:
        book.sent(ONE, prompt(fork))
    keys = prompt(asked)
    cached = min(cached, len(keys))

    def common(other: list[int]) -> int:
        return next(
            (at for at, (a, b) in enumerate(zip(keys, other, strict=False)) if a != b),
            min(len(keys), len(other)),
        )

    assert book.match_prefix(keys, cached) == max([cached, *(common(prompt(fork)) for fork in requests)])
