"""Where a node keeps its identity and what it knows of peers, and that only one process uses it.

Two processes with one identity would be one peer that contradicts itself, so the directory is locked for
as long as the process lives. The lock goes with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from peerinfer.cli.errors import CommandError


def default_data_dir(port: int) -> Path:
    """The default differs by HTTP port, so that two nodes on one machine do not meet in it."""
    return Path(platformdirs.user_data_dir("peerinfer")) / str(port)


@contextmanager
def lock(path: Path) -> Iterator[Path]:
    """Make the directory and hold its lock. Raises `CommandError`."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CommandError(f"cannot use {path} as data directory: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 32).decode("ascii", "replace").strip()
            who = f"process {pid}" if pid else "another process"
            raise CommandError(f"{path} is in use by {who}: stop it, or give another --data-dir") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield path
    finally:
        os.close(descriptor)
