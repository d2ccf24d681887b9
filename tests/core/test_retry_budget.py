"""A share of requests may be retried, savings are bounded, and it starts with a burst."""

from peerinfer.core.retry_budget import RetryBudget


def test_a_fresh_budget_has_its_burst_and_no_more() -> None:
    budget = RetryBudget(share=0.1, burst=2.0)
    assert [budget.try_retry() for _ in range(3)] == [True, True, False]


def test_ten_requests_earn_one_retry() -> None:
    """Exactly at the tenth, in spite of 0.1 not being a binary fraction."""
    budget = RetryBudget(share=0.1, burst=1.0)
    assert budget.try_retry()
    earned = []
    for _ in range(20):
        budget.request()
        earned.append(budget.try_retry())
    assert [number for number, retried in enumerate(earned, 1) if retried] == [10, 20]


def test_savings_are_bounded_by_the_burst() -> None:
    budget = RetryBudget(share=0.5, burst=1.0)
    for _ in range(100):
        budget.request()
    assert [budget.try_retry() for _ in range(2)] == [True, False]
