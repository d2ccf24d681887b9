"""Whatever the network does to a peer's messages, an estimate is some past tree of its owner (paper §3.4).

A history is all that one peer ever published: trees that change, heartbeats, cut trees, restarts. The
network loses, repeats and reorders; replies of the peer and our own inserts come in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from peerinfer.config import Config
from peerinfer.core.peer_view import Applied, PeerView
from peerinfer.core.snapshot import Snapshot
from peerinfer.core.types import Load, PageKey
from tests.core.swarm import IDLE, A, message, new_view

Life = tuple[int, int]
"""An incarnation and a tree version of it."""


@dataclass(frozen=True)
class History:
    """What a peer published, in order, and its whole tree at each version."""

    messages: list[Snapshot]
    trees: dict[Life, list[PageKey]]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Up to twelve messages; any may follow a restart, a change of the tree, or nothing."""
    incarnation, seq, version = 1, 0, 0
    tree: list[PageKey] = []
    messages: list[Snapshot] = []
    trees: dict[Life, list[PageKey]] = {(1, 0): tree}
    for _ in range(draw(st.integers(1, 12))):
        match draw(st.sampled_from(["change", "change", "nothing", "restart"])):
            case "change":
                version += draw(st.integers(1, 3))
                tree = draw(st.lists(st.integers(1, 30), max_size=8, unique=True))
            case "restart":
                incarnation, seq, version, tree = incarnation + 1, 0, 0, []
        seq += 1
        trees[incarnation, version] = tree
        sent = None if draw(st.booleans()) else tree[: draw(st.integers(0, 8))]
        told = message(sent, incarnation=incarnation, seq=seq, tree_version=version, pages=len(tree))
        messages.append(replace(told, cut=sent is not None and len(sent) < len(tree)))
    return History(messages, trees)


def check_estimate(view: PeerView, history: History) -> Life:
    """The estimate is the (perhaps cut) tree of the version that it claims, or empty if it claims none."""
    record = view.get(A)
    if record is None:
        return (-1, -1)
    life = (record.incarnation, record.tree_version)
    tree = history.trees[life] if record.tree_version >= 0 else []
    assert view.estimated_pages(A) == tree[: record.known_pages]
    return life


@given(histories(), st.data())
def test_any_deliveries_leave_a_past_tree_and_never_an_older_one(
    history: History, data: st.DataObject
) -> None:
    """Goal: convergence needs no repair protocol. Method: deliver at random, then one quiet round."""
    view = new_view()
    life = (-1, -1)
    seen: list[Snapshot] = []
    for message_ in data.draw(st.lists(st.sampled_from(history.messages), max_size=30)):
        applied = view.apply_snapshot(A, message_, now=0.0)
        seen.append(message_)
        if data.draw(st.booleans()):
            view.update_estimate(A, [40, 41], incarnation=message_.incarnation, tree_version=99, now=0.0)
        assert life <= (life := check_estimate(view, history)), "knowledge never goes backwards"
        if applied is Applied.APPLIED:
            assert life == (message_.incarnation, message_.tree_version)
    check_newest_state(view, seen)
    last = history.messages[-1]
    tree = history.trees[last.incarnation, last.tree_version]
    quiet = message(tree, incarnation=last.incarnation, seq=last.seq + 1, tree_version=last.tree_version + 1)
    assert view.apply_snapshot(A, quiet, now=0.0) is Applied.APPLIED
    assert view.estimated_pages(A) == tree


def check_newest_state(view: PeerView, seen: list[Snapshot]) -> None:
    """Of what was delivered, the newest incarnation's newest message is what is known."""
    if seen:
        newest = max(seen, key=lambda message_: (message_.incarnation, message_.seq))
        record = view.get(A)
        assert record is not None
        assert (record.incarnation, record.seq) == (newest.incarnation, newest.seq)


@given(histories(), st.data())
def test_delivering_everything_again_changes_nothing(history: History, data: st.DataObject) -> None:
    """Duplicates are harmless in any order: what is known already is stale."""
    view = new_view()
    for message_ in history.messages:
        view.apply_snapshot(A, message_, now=0.0)
    before = view.get(A)
    for message_ in data.draw(st.permutations(history.messages)):
        assert view.apply_snapshot(A, message_, now=1.0) in (Applied.STALE, Applied.NEEDS_PULL)
    assert view.get(A) == before


@given(histories(), st.data())
def test_nothing_that_was_said_brings_a_forgotten_peer_back(history: History, data: st.DataObject) -> None:
    view = new_view()
    for message_ in history.messages:
        view.apply_snapshot(A, message_, now=0.0)
    view.expire(now=Config().anti_entropy.forget_after_s)
    for message_ in data.draw(st.lists(st.sampled_from(history.messages), max_size=20)):
        assert view.apply_snapshot(A, message_, now=301.0) is Applied.STALE
    assert len(view) == 0


@given(st.permutations([(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]), st.booleans())
def test_the_newest_load_wins_whatever_brought_it(order: list[Life], by_reply: bool) -> None:
    """Messages and replies, each with its own load, in any order after a first message."""
    view = new_view()
    view.apply_snapshot(A, message(None, incarnation=1, seq=0), now=0.0)
    for incarnation, seq in order:
        load = Load(queued=10 * incarnation + seq)
        if by_reply:
            view.observe_load(A, load, incarnation=incarnation, seq=seq, now=0.0)
        else:
            view.apply_snapshot(A, message(None, incarnation=incarnation, seq=seq, load=load), now=0.0)
    record = view.get(A)
    assert record is not None
    assert record.load.queued == 21
    assert record.load != IDLE
