"""Silence makes a suspect, a sign of life ends it, minutes of silence make a peer forgotten."""

from peerinfer.config import AntiEntropyConfig
from peerinfer.core.failure_detector import FailureDetector

CONFIG = AntiEntropyConfig(suspect_after=3.0, forget_after_s=300.0, idle_interval_s=2.0)


def heard(at: float, *, next_within_s: float) -> FailureDetector:
    detector = FailureDetector(CONFIG, now=at)
    detector.heard(now=at, next_within_s=next_within_s)
    return detector


def test_a_peer_is_suspect_after_three_of_the_intervals_it_promised() -> None:
    assert heard(10.0, next_within_s=0.5).suspect_at == 11.5


def test_a_peer_that_promised_nothing_yet_has_the_patience_of_an_idle_one() -> None:
    assert FailureDetector(CONFIG, now=10.0).suspect_at == 16.0


def test_a_sign_of_life_without_a_promise_keeps_the_last_promise() -> None:
    detector = heard(10.0, next_within_s=0.5)
    detector.heard(now=20.0)
    assert (detector.heard_at, detector.suspect_at, detector.forget_at) == (20.0, 21.5, 320.0)


def test_a_lost_link_is_a_suspicion_at_once_until_the_next_sign_of_life() -> None:
    detector = heard(10.0, next_within_s=0.5)
    detector.link_lost(now=10.2)
    assert detector.suspect_at == 10.2
    detector.heard(now=10.3)
    assert detector.suspect_at == 11.8


def test_a_lost_link_does_not_postpone_an_earlier_suspicion() -> None:
    detector = heard(10.0, next_within_s=0.5)
    detector.link_lost(now=50.0)
    assert detector.suspect_at == 11.5


def test_restarted_clocks_leave_out_our_own_freeze_but_claim_no_sign_of_life() -> None:
    detector = heard(10.0, next_within_s=0.5)
    detector.restart(now=70.0)
    assert (detector.heard_at, detector.suspect_at, detector.forget_at) == (10.0, 71.5, 370.0)


def test_restarted_clocks_do_not_excuse_a_lost_link() -> None:
    detector = heard(10.0, next_within_s=0.5)
    detector.link_lost(now=10.2)
    detector.restart(now=70.0)
    assert (detector.suspect_at, detector.forget_at) == (10.2, 370.0)
    detector.heard(now=70.1)
    detector.restart(now=80.0)
    assert detector.suspect_at == 81.5


def test_a_promise_of_an_hour_does_not_outlast_being_forgotten() -> None:
    detector = heard(10.0, next_within_s=3600.0)
    assert detector.suspect_at == detector.forget_at == 310.0
