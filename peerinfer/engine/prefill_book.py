"""What an engine still has to compute of the prompts at hand, a page that several of them share once.

Prompts are computed in the order in which they came, so of those that share a prefix only the first computes
it: the others will find it cached. Counting it for each of them makes a node look far busier than it is, and
its peers keep everything to themselves. So each job claims those pages that are neither cached nor claimed
by an earlier one. A claim is right until its job begins, which then knows exactly. Claims are made anew where
cached pages are lost, a job ends before it has computed what others reckon with, or begins before them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peerinfer.engine.job import Job
from peerinfer.engine.page_cache import PageCache, cut


@dataclass(slots=True)
class _Claim:
    names: tuple[int, ...]
    """One for each whole page of the prompt, standing for the prefix that it ends."""
    begin: int = 0
    """The first page that this job computes."""
    tokens: int = 0
    """What it computes, if it computes only that."""


class PrefillBook:
    """Who will compute what; jobs in the order in which they came."""

    def __init__(self, cache: PageCache[Any]) -> None:
        self._cache = cache
        self._claims: dict[Job, _Claim] = {}
        self._coming: set[int] = set()
        self._losses = cache.losses

    def add(self, job: Job) -> None:
        """A job has come."""
        claim = self._claims[job] = _Claim(_names(job.tokens, self._cache.page_size))
        self._make(job, claim)

    def begin(self, job: Job, uncached_tokens: int) -> None:
        """It is the job's turn, and so much of its prompt is to be computed."""
        job.prefill_left = uncached_tokens
        claim = self._claims[job]
        begin = (len(job.tokens) - uncached_tokens) // self._cache.page_size
        if begin < claim.begin:
            claim.begin = begin
            self._renew()

    def remove(self, job: Job) -> None:
        """It is over. What it has computed is in the cache; what it has not, others have to."""
        claim = self._claims.pop(job)
        self._coming.difference_update(claim.names[claim.begin :])
        if job.prefill_left != 0:
            self._renew()

    def left(self, job: Job) -> int:
        """Prompt tokens that are still to be computed for this job and for none before it."""
        if job.prefill_left is not None:
            return job.prefill_left
        if self._losses != self._cache.losses:
            self._renew()
        return self._claims[job].tokens

    def _renew(self) -> None:
        """Let all claim anew that have not begun."""
        self._losses = self._cache.losses
        self._coming.clear()
        for job, claim in self._claims.items():
            if job.prefill_left is not None:
                self._coming.update(claim.names[claim.begin :])
        for job, claim in self._claims.items():
            if job.prefill_left is None:
                self._make(job, claim)

    def _make(self, job: Job, claim: _Claim) -> None:
        size, names = self._cache.page_size, claim.names
        begin = self._cache.match_prefix(job.tokens) // size
        if begin < len(names) and names[begin] in self._coming:
            begin = bisect_left(names, True, lo=begin, key=lambda name: name not in self._coming)
        claim.begin = begin
        # The last token is always computed, since its logits are what the answer starts from.
        claim.tokens = len(job.tokens) - min(begin, (len(job.tokens) - 1) // size) * size
        self._coming.update(names[begin:])


def _names(tokens: Sequence[int], page_size: int) -> tuple[int, ...]:
    """Cheap chained hashes: that two prefixes have the same name costs a wrong load, never an answer."""
    names, name = [], 0
    for page in cut(tokens, page_size):
        name = hash((name, page))
        names.append(name)
    return tuple(names)
