"""How text gets to people: as it is, styled only where a terminal shows it.

Much of it comes from elsewhere (models, peers), so nothing in it is read as markup.
"""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_COLUMNS = 200
"""A file or a pipe has no width to fit into; a table is not cut there."""


def plain_console(*, stderr: bool = False) -> Console:
    """A console for lines, which the terminal wraps by itself."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def table_console() -> Console:
    """A console for tables on stdout."""
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    return Console(highlight=False, markup=False, emoji=False, width=width)
