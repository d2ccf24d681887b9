"""`peerinfer key new`, and the reading of keys from files.

A swarm key is as good as the swarm itself, so its file is the owner's alone: it is made with mode 0600, an
existing one is never overwritten, and one that others can read is not used until that is put right.
"""

from __future__ import annotations

import os
import secrets
import shlex
import stat
from pathlib import Path

import click

from peerinfer.cli.errors import CommandError
from peerinfer.config import API_KEY
from peerinfer.core.swarm_key import (
    KEY_FILE_BYTES_MAX,
    SECRET_BYTES,
    SwarmKey,
    SwarmKeyError,
    format_swarm_key,
    parse_swarm_key,
)

DEFAULT_FILE = "swarm.key"
PRIVATE = 0o600


@click.group()
def key() -> None:
    """Keys of closed swarms."""


@key.command()
@click.argument("file", default=DEFAULT_FILE, type=click.Path(dir_okay=False, path_type=Path))
def new(file: Path) -> None:
    """Make a new swarm key and write it to FILE (default: swarm.key), which only you can read.

    Give the same file to every node of the swarm with --swarm-key; nobody else can join it then.
    """
    made = SwarmKey(secrets.token_bytes(SECRET_BYTES))
    write_swarm_key(file, made)
    shown = shlex.quote(str(file))
    click.echo(
        f"A new swarm key is in {file} (id {made.key_id}). Keep it secret, and start each node with it:"
    )
    click.echo(f"  peerinfer serve --swarm-key {shown}")
    click.echo(f"  peerinfer join ADDR --swarm-key {shown}")


def write_swarm_key(path: Path, swarm_key: SwarmKey) -> None:
    """Write a key to a new file that only its owner can read. Raises `CommandError`."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, PRIVATE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(format_swarm_key(swarm_key))
    except FileExistsError:
        raise CommandError(f"{path} exists already; remove it first, or give another FILE") from None
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None


def read_swarm_key(path: Path) -> SwarmKey:
    """The key in a file. Raises `CommandError`, also for one that others can read."""
    try:
        return parse_swarm_key(_read_private(path, "swarm key"))
    except SwarmKeyError as error:
        raise CommandError(f"{path} is no swarm key: {error}; make one with `peerinfer key new`") from None


def read_api_key(path: Path) -> str:
    """The API key in a file's first line. Raises `CommandError`, also for one that others can read."""
    lines = _read_private(path, "API key").splitlines()
    key = lines[0].decode("ascii", "replace").strip() if lines else ""
    if not API_KEY.fullmatch(key):
        raise CommandError(f"{path}: its first line is no API key, 1 to 512 ASCII characters without spaces")
    return key


def _read_private(path: Path, what: str) -> bytes:
    """The start of a file that nobody but its owner can read or change. Raises `CommandError`."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & ~PRIVATE:
                raise CommandError(
                    f"{path}: others can read or change this {what} (mode {mode:04o});"
                    f" run: chmod 600 {shlex.quote(str(path))}"
                )
            return file.read(KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CommandError(f"cannot read the {what} {path}: {error.strerror}") from None


swarm_key_option = click.option(
    "--swarm-key",
    type=click.Path(path_type=Path),
    envvar="PEERINFER_SWARM_KEY",
    show_envvar=True,
    metavar="FILE",
    help="The key of a closed swarm, from `peerinfer key new`.  [default: an open swarm]",
)
