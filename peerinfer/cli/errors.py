"""Errors that a person can act on: one line on stderr, and a status that says whose move it is.

Status 2: change what you typed or what this machine has, then try again. Status 1: it was tried and
failed. Status 130: interrupted. A traceback means a bug of ours and nothing else.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NoReturn, TypeVar, TypeVarTuple

import click
import trio

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

INTERRUPTED = 130


class CommandError(click.ClickException):
    """What went wrong and what to do about it, in one line."""

    exit_code = 2


class FailedError(CommandError):
    """It was tried, and did not work."""

    exit_code = 1


class OneLineGroup(click.Group):
    """A group whose errors take one line, usage errors included."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run a command line and leave with its status."""
        options["standalone_mode"] = False
        try:
            status = super().main(*args, **options)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            status = error.exit_code
        except click.ClickException as error:
            print_error(error)
            status = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            end_interrupted_line()
            status = INTERRUPTED
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            # Whoever read our output has seen enough (`| head`); flushing at exit would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 1
        sys.exit(status if isinstance(status, int) else 0)


def print_error(error: click.ClickException) -> None:
    """Say it in one line on stderr."""
    name = "peerinfer"
    message = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        name = error.ctx.command_path
        message = f"{message.rstrip('.')} (see {name} --help)"
    click.echo(f"{name}: {message}", err=True)


def end_interrupted_line() -> None:
    """A terminal has just shown `^C`; what comes next begins a line."""
    if sys.stderr.isatty():
        click.echo(err=True)


def run_async(
    function: Callable[[*Arguments], Awaitable[Result]],
    *arguments: *Arguments,
) -> Result:
    """Run a command's async part; what a nursery wrapped into a group comes out bare if it is foreseen."""
    try:
        return trio.run(function, *arguments)
    except BaseExceptionGroup as group:
        leaves = list(leaves_of(group))
        for kind in (KeyboardInterrupt, click.ClickException, BrokenPipeError):
            for leaf in leaves:
                if isinstance(leaf, kind):
                    raise leaf from None
        raise


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, however deep; an error that is no group is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves_of(each)
    else:
        yield error
