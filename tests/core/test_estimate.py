"""What we add to a peer's word ourselves, and when the peer's word makes us drop it."""

from peerinfer.core.estimate import NO_VERSION, Estimate

KEYS = (1, 2, 3)
ROUNDS = 3


def estimate_with(keys: tuple[int, ...] = KEYS, *, tree_version: int = 5) -> Estimate:
    estimate = Estimate(0)
    estimate.insert(keys, tree_version=tree_version)
    return estimate


def inserts_after_rounds(estimate: Estimate, *versions: int) -> list[set[int]]:
    left = []
    for version in versions:
        estimate.heard(version, is_round=True, rounds_max=ROUNDS)
        left.append(set(estimate.inserts))
    return left


def test_an_insert_ends_with_the_first_message_that_covers_it() -> None:
    assert inserts_after_rounds(estimate_with(), 4, 5) == [set(KEYS), set()]


def test_an_insert_ends_with_a_later_version_too() -> None:
    assert inserts_after_rounds(estimate_with(), 9) == [set()]


def test_an_insert_ends_after_three_messages_in_any_case() -> None:
    assert inserts_after_rounds(estimate_with(), 2, 3, 4) == [set(KEYS), set(KEYS), set()]


def test_only_rounds_are_counted() -> None:
    """What is no round (a late message, a pulled snapshot) covers inserts but does not age them."""
    estimate = estimate_with()
    for _ in range(10):
        estimate.heard(4, is_round=False, rounds_max=ROUNDS)
    assert set(estimate.inserts) == set(KEYS)
    estimate.heard(5, is_round=False, rounds_max=ROUNDS)
    assert not estimate.inserts


def test_an_insert_that_is_covered_already_is_not_made() -> None:
    estimate = Estimate(0)
    estimate.heard(5, is_round=True, rounds_max=ROUNDS)
    estimate.insert(KEYS, tree_version=5)
    assert not estimate.inserts


def test_a_page_stays_as_long_as_any_insert_that_needs_it() -> None:
    """Replies may come in another order than the versions they name; parents must not go first."""
    estimate = estimate_with((1, 2, 3), tree_version=9)
    estimate.heard(1, is_round=True, rounds_max=ROUNDS)
    estimate.insert((1, 2, 4), tree_version=7)
    estimate.heard(7, is_round=True, rounds_max=ROUNDS)
    assert set(estimate.inserts) == {1, 2, 3}
    estimate.heard(8, is_round=True, rounds_max=ROUNDS)
    assert set(estimate.inserts) == {1, 2}, "3 is three rounds old, the others were used later"


def test_inserts_are_matched_from_the_start_of_a_prompt() -> None:
    estimate = estimate_with((1, 2, 3))
    assert [estimate.match_inserts(prompt[::-1]) for prompt in ((1, 2, 3, 4), (1, 2), (1, 7), (7,), ())] == [
        3,
        2,
        1,
        0,
        0,
    ]


def test_a_newer_tree_is_wanted_and_one_that_is_known_only_where_we_trimmed_it() -> None:
    estimate = Estimate(0)
    assert (estimate.version, estimate.lacks(0)) == (NO_VERSION, True)
    estimate.version = 4
    assert [estimate.lacks(version) for version in (3, 4, 5)] == [False, False, True]
    estimate.trimmed = True
    assert [estimate.lacks(version) for version in (3, 4, 5)] == [False, True, True]


def test_an_emptied_estimate_knows_nothing() -> None:
    estimate = estimate_with()
    estimate.version, estimate.cut, estimate.trimmed = 5, True, True
    estimate.empty()
    assert (estimate.version, estimate.cut, estimate.trimmed) == (NO_VERSION, False, False)
    assert not estimate.inserts
