"""A TCP proxy before each node's port for peers, which knows who connects and can come between any two nodes.

A node announces its proxy's address (`--announce`), so all that peers say to each other passes here. Who has
dialled is found as netstat finds it: the connection's other end is a port, which is a socket, which is among
one node's open files. `silence` holds back what is said from one node to another, as a network that drops
packets does, until it heals; `sever` breaks their connections and lets none come up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

CHUNK_BYTES = 65_536
Pair = frozenset[str]


class Cuts:
    """What lies between which nodes, by their names."""

    def __init__(self) -> None:
        self._silent: dict[tuple[str, str], trio.Event] = {}
        self._severed: set[Pair] = set()
        self._links: dict[Pair, set[trio.CancelScope]] = {}

    def between(self, a: str, b: str) -> bool:
        """Whether anything does."""
        return bool({(a, b), (b, a)} & self._silent.keys()) or frozenset((a, b)) in self._severed

    async def silence(self, a: str, b: str, *, for_s: float, one_way: bool) -> None:
        """Nothing arrives that `a` says to `b`, nor the other way round unless it is `one_way`."""
        ways = [(a, b)] if one_way else [(a, b), (b, a)]
        for way in ways:
            self._silent[way] = trio.Event()
        try:
            await trio.sleep(for_s)
        finally:
            for way in ways:
                self._silent.pop(way).set()

    async def sever(self, a: str, b: str, *, for_s: float) -> None:
        """Break their connections, and all new ones."""
        pair = frozenset((a, b))
        self._severed.add(pair)
        for link in tuple(self._links.get(pair, ())):
            link.cancel()
        try:
            await trio.sleep(for_s)
        finally:
            self._severed.discard(pair)

    async def passable(self, source: str, target: str) -> None:
        """Until what `source` says arrives at `target`."""
        while (silent := self._silent.get((source, target))) is not None:
            await silent.wait()

    def link(self, a: str, b: str) -> trio.CancelScope:
        """The scope of a connection between two nodes, which severing them cancels."""
        scope = trio.CancelScope()
        if frozenset((a, b)) in self._severed:
            scope.cancel()
        self._links.setdefault(frozenset((a, b)), set()).add(scope)
        return scope

    def over(self, a: str, b: str, scope: trio.CancelScope) -> None:
        """That connection has ended."""
        self._links[frozenset((a, b))].discard(scope)


class Proxy:
    """Before one node.

    Args:
        owner: the node's name.
        port: where it listens.
        who: the name of the node whose process has a local port; None if it is none of them.
    """

    def __init__(self, owner: str, port: int, *, cuts: Cuts, who: Callable[[int], str | None]) -> None:
        self._owner, self._port, self._cuts, self._who = owner, port, cuts, who

    async def serve(self, *, task_status: trio.TaskStatus[int]) -> None:
        """Listen until cancelled; tells its port."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        started: trio.TaskStatus[object] = _Started(task_status, listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._pass_on, listeners, task_status=started)

    async def _pass_on(self, near: trio.SocketStream) -> None:
        dialler = self._who(near.socket.getpeername()[1]) or "somebody"
        scope = self._cuts.link(dialler, self._owner)
        try:
            with scope:
                async with (
                    near,
                    await trio.open_tcp_stream("127.0.0.1", self._port) as far,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(partial(self._pump, near, far, nursery), dialler, self._owner)
                    nursery.start_soon(partial(self._pump, far, near, nursery), self._owner, dialler)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._cuts.over(dialler, self._owner, scope)

    async def _pump(
        self,
        source: trio.SocketStream,
        target: trio.SocketStream,
        nursery: trio.Nursery,
        sender: str,
        receiver: str,
    ) -> None:
        while data := await source.receive_some(CHUNK_BYTES):
            await self._cuts.passable(sender, receiver)
            await target.send_all(data)
        await self._cuts.passable(sender, receiver)
        nursery.cancel_scope.cancel()  # no node closes one half of a connection


class _Started:
    """Tells a port in place of the listeners."""

    def __init__(self, task_status: trio.TaskStatus[int], port: int) -> None:
        self._task_status, self._port = task_status, port

    def started(self, _value: object = None) -> None:
        self._task_status.started(self._port)


def process_of(port: int, pids: dict[str, int]) -> str | None:
    """The name of the process that has a connection from this local port."""
    inode = _inode(port)
    if inode is None:
        return None
    for name, pid in pids.items():
        with suppress(OSError):  # it has just ended
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if str(file.readlink()) == f"socket:[{inode}]":
                        return name
    return None


def _inode(port: int) -> str | None:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port:
            return fields[9]
    return None
