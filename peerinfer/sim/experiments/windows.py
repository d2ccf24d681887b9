"""Shares per node over a moving window of one subject's requests, and the zones of figure 4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from peerinfer.sim.experiments.record import Record

WINDOW = 300  # paper figure 3
STRIDE = 30  # paper figure 3
STRIDES = WINDOW // STRIDE
WINDOWS_MIN = 4
"""Of a subject with fewer than 300 requests; its window is this part of them."""
SPECIALIST_SHARE = 0.9  # paper figure 4: "essentially 100%"
DISPERSED_SHARE = 0.75  # guess: what no longer counts as one node's subject


@dataclass(frozen=True, slots=True)
class Share:
    """One window."""

    requests: int
    """Of the subject so far: where the window ends."""
    by_node: tuple[float, ...]

    @property
    def top(self) -> float:
        """The specialist's share."""
        return max(self.by_node)


def subject_shares(record: Record, topic: int, *, window: int = WINDOW, stride: int = STRIDE) -> list[Share]:
    """Each node's share of a subject's requests, over the last `window` of them at every `stride`-th.

    The first windows are shorter: what happens before 300 requests have come is zone 1.
    """
    served = [row.served_by for row in record.answered if row.topic == topic]
    shares = []
    for end in range(stride, len(served) + 1, stride):
        last = served[max(0, end - window) : end]
        counts = Counter(last)
        shares.append(Share(end, tuple(counts[node] / len(last) for node in range(record.nodes))))
    return shares


def own_window(record: Record, topic: int) -> int:
    """The paper's 300 for a subject that has so many requests, else a quarter of what it has."""
    requests = sum(row.topic == topic for row in record.answered)
    return WINDOW if requests >= WINDOW else max(1, requests // WINDOWS_MIN)


def named_topics(record: Record, subjects: Sequence[str]) -> list[int]:
    """The subjects that a user named."""
    return [record.topics.index(name) for name in subjects]


def busiest_topics(records: Sequence[Record], count: int) -> list[int]:
    """The topics with the most requests, each counted in the record that has fewest of it."""
    sizes = [Counter(row.topic for row in record.answered) for record in records]
    topics = set().union(*sizes)
    return sorted(topics, key=lambda topic: (-min(size[topic] for size in sizes), topic))[:count]


def cycling_topics(records: Sequence[Record], *, window: int, stride: int) -> list[int]:
    """The topics that fill a window in every record, those first that go through most zones, most often.

    The least of the records counts; those with more requests come first if equal.
    """

    def walk(record: Record, topic: int) -> tuple[int, int]:
        found = zones(subject_shares(record, topic, window=window, stride=stride))
        return len(set(found)), sum(now != before for before, now in pairwise(found))

    sizes = [Counter(row.topic for row in record.answered) for record in records]
    enough = [topic for topic in sizes[0] if all(size[topic] >= window for size in sizes)]
    walks = {topic: min(walk(record, topic) for record in records) for topic in enough}
    size = sum(sizes, Counter[int]())
    return sorted(enough, key=lambda topic: (*(-each for each in walks[topic]), -size[topic], topic))


def zones(shares: Sequence[Share]) -> list[int]:
    """The zone that each window is in (paper figure 4).

    1, competitive: no specialist yet. 2, specialised: one node has nearly all. 3, evicted: what was one
    node's is dispersed again, until there is a specialist anew.
    """
    zone, result = 1, []
    for share in shares:
        if share.top >= SPECIALIST_SHARE:
            zone = 2
        elif zone == 2 and share.top < DISPERSED_SHARE:
            zone = 3
        result.append(zone)
    return result
