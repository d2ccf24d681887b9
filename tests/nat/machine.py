"""A machine with a network of its own: a Linux network namespace.

Nothing outlives the tests, however they end. A namespace has no name, only a process that holds it and ends
with its standard input, hence with this one; what runs inside is killed with the thread that started it. With
its last process a namespace goes away, and takes its interfaces, routes and rules along.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

CLONE_NEWNET = 0x40000000
CALLS_AT_ONCE_MAX = 8


class CommandFailedError(Exception):
    """The message says which, and what it said."""


def run(*command: str, given: str | None = None) -> str:
    """What a command prints. Raises `CommandFailedError`."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True)
    except OSError as error:
        raise CommandFailedError(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise CommandFailedError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class Machine:
    """One machine; nothing but its loopback is up."""

    def __init__(self, name: str) -> None:
        self.name = name
        hold = "echo; exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", hold],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._holder.stdout is not None
        if said := self._holder.stdout.readline().strip():
            self.close()
            raise CommandFailedError(said.decode())
        self._calls = ThreadPoolExecutor(CALLS_AT_ONCE_MAX, initializer=self._move_thread)
        self.run("ip", "link", "set", "lo", "up")

    @property
    def namespace(self) -> Path:
        """What other tools take for its network."""
        return Path(f"/proc/{self._holder.pid}/ns/net")

    @property
    def pid(self) -> str:
        """What `ip` takes for its network."""
        return str(self._holder.pid)

    def within(self, *command: str) -> list[str]:
        """A command that runs on this machine, and no longer than who starts it."""
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={self.namespace}", *command]

    def run(self, *command: str, given: str | None = None) -> str:
        """What a command prints that runs on this machine. Raises `CommandFailedError`."""
        return run(*self.within(*command), given=given)

    def set(self, name: str, value: int) -> None:
        """One of the kernel's settings for this machine's network."""
        self.run("tee", f"/proc/sys/net/{name}", given=str(value))

    def transport(self) -> httpx.BaseTransport:
        """HTTP from this machine itself, to its loopback above all."""
        return _Transport(self._calls)

    def close(self) -> None:
        """Let it go, with what still runs on it."""
        if hasattr(self, "_calls"):
            self._calls.shutdown()
        self._holder.kill()
        self._holder.wait()
        for pipe in (self._holder.stdin, self._holder.stdout):
            if pipe is not None:
                pipe.close()

    def _move_thread(self) -> None:
        """Have this thread's sockets be this machine's; os.setns is Python 3.12's."""
        descriptor = os.open(self.namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(descriptor)


class _Transport(httpx.BaseTransport):
    """Connects in a thread that is on the machine: a socket stays where it was made, whoever reads it."""

    def __init__(self, calls: ThreadPoolExecutor) -> None:
        self._calls = calls
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._calls.submit(self._inner.handle_request, request).result()

    def close(self) -> None:
        self._inner.close()


def connect(one: Machine, other: Machine, *, names: Sequence[str]) -> None:
    """A cable between two machines, with an interface at each."""
    here, there = names
    one.run(
        *("ip", "link", "add", here, "type", "veth"),
        *("peer", "name", there, "netns", other.pid),
    )
    one.run("ip", "link", "set", here, "up")
    other.run("ip", "link", "set", there, "up")
