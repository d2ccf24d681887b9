"""What an overlay's `run` raises when one thing went wrong: that thing, not the groups around it.

Half a dozen nurseries stand around the body of `run`, some of them the library's, and each wraps what
passes through it. Whoever catches a port that is taken should not have to know how many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def single_error() -> Iterator[None]:
    """Raise the only exception of nested groups by itself; groups of several stay groups."""
    error: BaseException | None = None
    try:
        yield
    except BaseExceptionGroup as group:
        error = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if error is not None:
        raise error
