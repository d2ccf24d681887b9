"""An SGLang server of the node's own: a child process that is started, watched, started again, and ended.

Theory of operation. A run is one life of the child; the next one has another number, other ports and an empty
cache. The kernel says at once when the child ends (a pidfd), whatever the reason; its whole process group is
killed before the child is reaped, so that no worker of it holds memory or a port when the next run begins. A
child that lives is asked for its health, which SGLang answers only when it produces tokens. Failed checks
make the engine FAILING and one success makes it READY again: the same run, the same cache. Only a child that
has been failing for very long is killed.

The child never outlives the node: it asks the kernel to be killed with its parent (PR_SET_PDEATHSIG) before
it becomes SGLang, whose workers do the same. The parent is the *thread* that forks, so it is forked in trio's
own thread; `trio.lowlevel.open_process` would use a worker thread, which ends when it has been idle long.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import trio

from peerinfer.config import EngineConfig
from peerinfer.core.types import EngineState
from peerinfer.engine.gpu import find_gpu
from peerinfer.engine.server_log import ServerLog
from peerinfer.engine.sglang_flags import (
    HOST,
    Ports,
    check_args,
    flag_value,
    reserved_ports,
    server_command,
    server_environment,
)
from peerinfer.node.ports import EngineError

START_POLL_S = 0.25
"""Between two looks at a server that starts."""
SAY_AGAIN_S = 30.0
"""A start that takes long says so this often."""
FAILING_AFTER = 3  # guess
"""A server that ends so often in a row before it was ready counts as failing, not as restarting."""

# Runs before SGLang, in its process: `argv` is the node's pid and the command.
_TIED_TO_PARENT = """\
import ctypes, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a node in a shell's background ignores it
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != int(sys.argv[1]): os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What is known about a server."""

    state: EngineState
    detail: str
    """For people, one line."""
    run: int
    """Another run is another process: its cache began empty."""


Report = Callable[[ServerState], None]
"""Called in trio's thread with every change; must not block."""


class ManagedServer:
    """One SGLang that is kept running. Raises `EngineError` at once for what cannot work."""

    def __init__(self, config: EngineConfig, *, model: str, log_path: Path) -> None:
        if sys.platform != "linux":
            raise EngineError("SGLang is started on Linux only; start it yourself and give --engine-url")
        check_args(config.args)
        self._config = config
        self._model = model
        python = config.python or sys.executable
        if (found := shutil.which(python)) is None:
            raise EngineError(f"--engine-python: there is no program {python}")
        self._python = found
        device = flag_value(config.args, "--device")
        self._gpu = device != "cpu" if device else find_gpu() is not None
        self._log = ServerLog(log_path)
        self._report: Report | None = None
        self._run = 0
        self._ports: Ports | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._ready_at: float | None = None
        """When the current run was healthy first."""
        self._verdict = ""
        """Why we killed the current run."""
        self._hurry = trio.Event()

    @property
    def url(self) -> str:
        """Where the current run listens, e.g. `http://127.0.0.1:30000`; it changes between runs."""
        assert self._ports is not None, "the server is not running"
        return f"http://{HOST}:{self._ports.http}"

    @property
    def events_endpoint(self) -> str:
        """Where the current run publishes its cache events."""
        assert self._ports is not None, "the server is not running"
        return f"tcp://{HOST}:{self._ports.events}"

    @property
    def replay_endpoint(self) -> str:
        """Where the current run repeats cache events that were missed."""
        assert self._ports is not None, "the server is not running"
        return f"tcp://{HOST}:{self._ports.replay}"

    @property
    def pid(self) -> int | None:
        """The current run's process; None between two runs."""
        return self._child.pid if self._child else None

    @asynccontextmanager
    async def run(self, report: Report) -> AsyncIterator[None]:
        """Keep the server running until the block is left. Entering does not wait for it: `report` tells."""
        self._report = report
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_running)
                yield
                nursery.cancel_scope.cancel()
        finally:
            self._report = None
            self._log.close()

    def check_soon(self) -> None:
        """Ask for the server's health now: somebody has reason to doubt it."""
        self._hurry.set()

    async def _keep_running(self) -> None:
        config, failures = self._config, 0
        while True:
            self._run += 1
            with reserved_ports(config.args) as self._ports:
                why = await self._one_run()
            ready_s = trio.current_time() - self._ready_at if self._ready_at is not None else 0.0
            failures = 0 if ready_s > config.restart_delay_s_max else failures
            wait_s = min(config.restart_delay_s_max, config.restart_delay_s_min * 2.0 ** min(failures, 32))
            failures += 1
            failing = self._ready_at is None and failures >= FAILING_AFTER
            state = EngineState.FAILING if failing else EngineState.RESTARTING
            self._tell(state, f"{why}; starting it again in {wait_s:.3g} s (log: {self._log.path})")
            await trio.sleep(wait_s)

    async def _one_run(self) -> str:
        """One life of the child; returns why it ended."""
        self._ready_at, self._verdict = None, ""
        self._log.begin()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        try:
            try:
                self._child = child = self._start(writing)
            except OSError as error:
                return f"SGLang could not be started: {error}"
            finally:
                os.close(writing)
            pidfd = os.pidfd_open(child.pid)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read, reading)
                    nursery.start_soon(self._watch, pidfd)
                    await trio.lowlevel.wait_readable(pidfd)
                    nursery.cancel_scope.cancel()
            finally:
                with trio.CancelScope(shield=True):
                    await self._end(child, pidfd)
                os.close(pidfd)
                self._child = None
            with contextlib.suppress(BlockingIOError):  # its last words
                while data := os.read(reading, 65536):
                    self._log.feed(data)
            return self._why(child.returncode)
        finally:
            os.close(reading)

    def _start(self, output: int) -> subprocess.Popen[bytes]:
        assert self._ports is not None
        command = server_command(
            self._config, python=self._python, model=self._model, ports=self._ports, gpu=self._gpu
        )
        return subprocess.Popen(
            [self._python, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid()), *command],
            env=server_environment(os.environ, model=self._model, gpu=self._gpu),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a terminal's Ctrl-C is for the node; and there is one group to kill
        )

    async def _end(self, child: subprocess.Popen[bytes], pidfd: int) -> None:
        """End the child if it has not ended, then all that it left behind, and reap it."""
        with trio.move_on_after(self._config.stop_grace_s):
            # SIGTERM would drain requests for whoever balances load; ours are cancelled or sent elsewhere.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGINT)
            await trio.lowlevel.wait_readable(pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # while it is not reaped, nobody else can have its number
        await trio.lowlevel.wait_readable(pidfd)
        child.wait()

    async def _read(self, output: int) -> None:
        async with trio.lowlevel.FdStream(os.dup(output)) as stream:
            async for data in stream:
                self._log.feed(bytes(data))

    async def _watch(self, pidfd: int) -> None:
        """Report the child's health for as long as it lives; kill it when there is no hope left."""
        config = self._config
        limits = httpx.Limits(max_keepalive_connections=0)  # each check proves that it still accepts
        async with httpx.AsyncClient(
            base_url=self.url, timeout=config.health_timeout_s, limits=limits, trust_env=False
        ) as client:
            with trio.move_on_after(config.start_timeout_s) as scope:
                await self._until_healthy(client)
            if scope.cancelled_caught:
                self._kill(pidfd, f"SGLang was not ready within {config.start_timeout_s:.0f} s")
            else:
                await self._while_it_lives(client, pidfd)

    async def _until_healthy(self, client: httpx.AsyncClient) -> None:
        state = EngineState.LOADING if self._run == 1 else EngineState.RESTARTING
        started_at = trio.current_time()
        phase, say_again_at = None, 0.0
        while await self._check(client):
            now = trio.current_time()
            if self._log.phase != phase:
                phase, say_again_at = self._log.phase, now + SAY_AGAIN_S
                self._tell(state, f"SGLang: {phase or 'starting'}")
            elif now >= say_again_at:
                say_again_at = now + SAY_AGAIN_S
                self._tell(state, f"SGLang: {phase or 'starting'}, for {now - started_at:.0f} s by now")
            await trio.sleep(START_POLL_S)
        self._ready_at = trio.current_time()
        self._tell(
            EngineState.READY, f"SGLang is ready after {self._ready_at - started_at:.0f} s, at {self.url}"
        )

    async def _while_it_lives(self, client: httpx.AsyncClient, pidfd: int) -> None:
        config, failed, since = self._config, 0, 0.0
        while True:
            with trio.move_on_after(config.health_interval_s):
                await self._hurry.wait()
            self._hurry = trio.Event()
            asked_at = trio.current_time()
            why = await self._check(client)
            now = trio.current_time()
            if not why:
                if failed >= config.health_failures_max:
                    self._tell(EngineState.READY, f"SGLang answers again, after {now - since:.0f} s")
                failed = 0
                continue
            failed += 1
            since = asked_at if failed == 1 else since
            if failed == config.health_failures_max:
                self._tell(EngineState.FAILING, f"SGLang's health checks fail: {why}")
            if failed >= config.health_failures_max and now - since > config.hung_after_s:
                self._kill(pidfd, f"SGLang's health checks failed for {now - since:.0f} s")
                return

    async def _check(self, client: httpx.AsyncClient) -> str:
        """Why the server is not healthy; empty if it is."""
        try:
            answer = await client.get("/health")
        except httpx.TimeoutException:
            return f"no answer within {self._config.health_timeout_s:.3g} s"
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        return "" if answer.is_success else f"status {answer.status_code}"

    def _kill(self, pidfd: int, verdict: str) -> None:
        """The end of the child is noticed, and told with the verdict, like any other end."""
        self._verdict = verdict
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _why(self, status: int) -> str:
        if self._verdict:
            return self._verdict
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        when = "" if self._ready_at is not None else " before it was ready"
        words = self._log.last_words()
        return f"SGLang {how}{when}" + (f": {words}" if words and status >= 0 else "")

    def _tell(self, state: EngineState, detail: str) -> None:
        if self._report is not None:
            self._report(ServerState(state=state, detail=detail, run=self._run))
