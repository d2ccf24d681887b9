"""A workload: requests in the order in which they come, each with its tokens and its entry node.

Prompts are made while the workload is walked through, since a trace of millions of tokens would not fit
into memory as Python's integers. Walking twice gives the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request to one node."""

    entry: int
    """Index of the node that the client asks."""
    topic: int
    """Index into the workload's topics: requests of one topic share a long prefix."""
    tokens: Tokens
    max_tokens: int
    at_s: float | None = None
    """When it comes, from the workload's start; None: when the one before it has been answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests, and what they are about."""

    topics: tuple[str, ...]
    count: int
    digest: str
    """Of the prompts that it draws from: two corpora never pass for each other."""
    arrivals: Callable[[], Iterator[Arrival]]
    """The requests, from the first one."""
