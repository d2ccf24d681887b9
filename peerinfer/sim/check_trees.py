"""Checks trees: the own one is the engine's cache, an estimate is some past tree of its owner.

Whenever a node tells its tree, what it really has is noted under the tree's version. Whenever a node has
taken over a message, its estimate is looked up there: it must be that tree, or where it was cut or trimmed
a part of it that is closed under parents. Inserts must be prompts that the peer served for this node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from peerinfer.core.peer_view import Applied
from peerinfer.core.snapshot import Snapshot
from peerinfer.core.types import CacheEvent, PageKey, PeerId
from peerinfer.node.context import Context

if TYPE_CHECKING:
    from peerinfer.sim.place import Place

Version = tuple[PeerId, int, int]
"""Owner, incarnation, tree version."""


class TreeChecker:
    """See the module."""

    def __init__(self, violation: Callable[[str], None]) -> None:
        self._violation = violation
        self._told: dict[Version, frozenset[PageKey]] = {}
        self._parents: dict[PageKey, PageKey | None] = {}
        self._served: dict[tuple[PeerId, PeerId], set[PageKey]] = {}

    def watch(self, place: Place) -> None:
        """Put ourselves between the parts of a new node."""
        node: Any = place.node
        overlay: Any = place.overlay
        view: Any = place.node.context.view
        context = place.node.context
        publish, hello, cache_events = overlay.publish, node.hello, node.cache_events
        apply_snapshot, update_estimate = view.apply_snapshot, view.update_estimate

        async def watched_publish(payload: bytes) -> None:
            self._note(context)
            await publish(payload)

        def watched_hello() -> bytes:
            self._note(context)
            return hello()  # type: ignore[no-any-return]

        def watched_cache_events(events: Sequence[CacheEvent]) -> None:
            cache_events(events)
            self._check_own(place)

        def watched_apply(peer: PeerId, snapshot: Snapshot, *, now: float) -> Applied:
            applied: Applied = apply_snapshot(peer, snapshot, now=now)
            self._check_estimate(context, peer)
            return applied

        def watched_update(peer: PeerId, keys: Sequence[PageKey], **others: Any) -> None:
            self._served.setdefault((context.me, peer), set()).update(keys)
            update_estimate(peer, keys, **others)
            self._check_inserts(context, peer)

        overlay.publish, node.hello, node.cache_events = watched_publish, watched_hello, watched_cache_events
        view.apply_snapshot, view.update_estimate = watched_apply, watched_update

    def check_quiet(self, living: list[Place]) -> None:
        """Everybody knows everybody's tree as it is."""
        for owner in living:
            tree = self._note(owner.node.context)
            if tree != _cached(owner):
                self._violation(f"{owner.peer_id}'s tree is not its engine's cache")
            for place in living:
                if place is not owner:
                    self._check_known(place.node.context, owner, tree)

    def _check_known(self, node: Context, owner: Place, tree: frozenset[PageKey]) -> None:
        estimate = frozenset(node.view.estimated_pages(owner.peer_id))
        if estimate - tree or (_is_whole(node, owner.peer_id) and estimate != tree):
            self._violation(
                f"{node.me} has {len(estimate)} pages of {owner.peer_id}, {len(estimate - tree)} of them "
                f"wrongly, where it has {len(tree)}, all healed and quiet"
            )
        if inserts := node.view.inserted_pages(owner.peer_id):
            self._violation(f"{node.me} keeps {len(inserts)} inserts for {owner.peer_id}, all quiet")

    def _note(self, node: Context) -> frozenset[PageKey]:
        """The tree that a node tells of at this moment."""
        keys = node.view.own.ordered_keys()
        tree = frozenset(keys)
        version = (node.me, node.incarnation, node.view.own.version)
        if self._told.setdefault(version, tree) != tree:
            self._violation(f"two trees are one version: {version}")
        for key in keys:
            if key not in self._parents:
                page = node.view.own._visible[key]
                assert page.parent is not None
                self._parents[key] = page.parent.key if page.parent.depth else None
        return tree

    def _check_own(self, place: Place) -> None:
        pages, cached = len(place.node.context.view.own), len(place.engine.cache)
        if pages != cached:
            self._violation(f"{place.peer_id}'s tree has {pages} pages, its engine {cached}")

    def _check_estimate(self, node: Context, peer: PeerId) -> None:
        record = node.view.get(peer)
        if record is None or record.tree_version < 0:
            return
        pages = node.view.estimated_pages(peer)
        told = self._told.get((peer, record.incarnation, record.tree_version))
        estimate = frozenset(pages)
        if told is None or not estimate <= told or len(estimate) != len(pages):
            self._violation(f"no past tree of {peer} explains {node.me}'s estimate of it: {record}")
        elif _is_whole(node, peer):
            if estimate != told:
                self._violation(f"{node.me}'s estimate of {peer} lacks pages that it says are all there")
        elif any(parent is not None and parent not in estimate for parent in map(self._parents.get, pages)):
            self._violation(f"{node.me}'s estimate of {peer} is not closed under parents")

    def _check_inserts(self, node: Context, peer: PeerId) -> None:
        if not node.view.inserted_pages(peer) <= self._served.get((node.me, peer), set()):
            self._violation(f"{node.me} inserted what {peer} never served for it")


def _is_whole(node: Context, peer: PeerId) -> bool:
    """Whether the estimate claims to be the whole tree."""
    known = next((each for each in node.view.candidates() if each.peer == peer), None)
    return known is not None and not known.estimate.cut and not known.estimate.trimmed


def _cached(place: Place) -> frozenset[PageKey]:
    """The engine's cache as page keys."""
    hasher = place.node.context.hasher
    return frozenset(hasher.keys(tokens)[-1] for tokens in place.engine.cache.prefixes())
