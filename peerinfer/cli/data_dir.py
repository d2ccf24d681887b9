"""Where a node keeps its identity and what it knows of peers, and that only one process uses it.

Two processes with one identity would be one peer that contradicts itself, so the directory is locked for
as long as the process lives. The lock goes with the process, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import platformdirs

from peerinfer.cli.addresses import HostPort
from peerinfer.cli.errors import CommandError

PORTS_TRIED_MAX = 100


class DataDirLockedError(CommandError):
    """Another process uses this directory."""

    def __init__(self, path: Path, pid: str) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(f"{path} is in use by {who}: stop that one, or give --data-dir another directory")


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
            raise DataDirLockedError(
                path, os.read(descriptor, 32).decode("ascii", "replace").strip()
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield path
    finally:
        os.close(descriptor)


@contextmanager
def reserve(
    address: HostPort, *, port_is_default: bool, data_dir: Path | None
) -> Iterator[tuple[HostPort, Path]]:
    """A free HTTP port and a locked data directory. Raises `CommandError`.

    Only a defaulted port moves on to the next free one. While the directory also goes by the port, its
    lock is what keeps two nodes that start at once from choosing the same one.
    """
    ports = [address.port]
    if port_is_default:
        ports = list(range(address.port, min(address.port + PORTS_TRIED_MAX, 65536)))
    with ExitStack() as held:
        for port in ports:
            free = _free_port(HostPort(address.host, port))
            if free is None:
                continue
            try:
                path = held.enter_context(lock(data_dir or default_data_dir(free)))
            except DataDirLockedError:
                if data_dir is None and port_is_default:
                    continue
                raise
            yield HostPort(address.host, free), path
            return
    if port_is_default:
        raise CommandError(f"no free port from {ports[0]} to {ports[-1]}: choose one with --http HOST:PORT")
    raise CommandError(f"port {address.port} on {address.host} is taken: choose one with --http HOST:PORT")


def _free_port(address: HostPort) -> int | None:
    """The port, if it can be bound now (for port 0 the one that the system chose); None if it is taken."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except PermissionError:
            raise CommandError(
                f"port {address.port} needs root: choose one above 1023 with --http HOST:PORT"
            ) from None
        except socket.gaierror:
            raise CommandError(f"--http: {address.host} is no address of this machine") from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise CommandError(f"--http: {address.host} is no address of this machine") from None
            return None
        port: int = probe.getsockname()[1]
        return port
