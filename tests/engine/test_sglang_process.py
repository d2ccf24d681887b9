"""A managed server through its life, with a stand-in that is up in no time; the real one comes last."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from peerinfer.config import EngineConfig
from peerinfer.core.types import EngineState
from peerinfer.engine.sglang_process import ManagedServer, ServerState
from peerinfer.node.ports import EngineError

FAKE = Path(__file__).parent / "fake_sglang"
PATIENCE_S = 30.0
CONFIG = EngineConfig(
    kind="sglang",
    health_interval_s=0.05,
    restart_delay_s_min=0.05,
    restart_delay_s_max=0.1,
    health_timeout_s=5,
)
LOADING, READY, FAILING, RESTARTING = EngineState


class Told:
    """What a server has reported."""

    def __init__(self) -> None:
        self.states: list[ServerState] = []
        self._changed = trio.Event()

    def __call__(self, state: ServerState) -> None:
        self.states.append(state)
        self._changed.set()
        self._changed = trio.Event()

    @property
    def kinds(self) -> list[EngineState]:
        return [state.state for state in self.states]

    async def until(self, holds: Callable[[ServerState], bool]) -> ServerState:
        """The first report that fits, of those so far and those to come."""
        with trio.fail_after(PATIENCE_S):
            while True:
                for state in self.states:
                    if holds(state):
                        return state
                await self._changed.wait()


class Fake:
    """The stand-in's strings."""

    def __init__(self, control: Path) -> None:
        self.control = control

    def mode(self, text: str) -> None:
        (self.control / "mode").write_text(text)

    def sick(self, yes: bool) -> None:
        if yes:
            (self.control / "sick").touch()
        else:
            (self.control / "sick").unlink()

    @property
    def runs(self) -> list[dict[str, Any]]:
        file = self.control / "runs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    async def started(self, count: int) -> dict[str, Any]:
        """The so-many-th run."""
        with trio.fail_after(PATIENCE_S):
            while len(self.runs) < count:
                await trio.sleep(0.01)
        return self.runs[count - 1]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setenv("FAKE_SGLANG", str(tmp_path))
    return Fake(tmp_path)


@asynccontextmanager
async def running(tmp_path: Path, config: EngineConfig = CONFIG) -> AsyncIterator[tuple[ManagedServer, Told]]:
    told = Told()
    server = ManagedServer(config, model="some/model", log_path=tmp_path / "log" / "sglang.log")
    async with server.run(told):
        yield server, told


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def gone(*pids: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while any(map(alive, pids)):
            await trio.sleep(0.01)


async def test_a_server_is_started_watched_and_ended_with_all_its_processes(
    tmp_path: Path, fake: Fake
) -> None:
    """Its log is kept, and its steps are told before it is ready."""
    fake.mode("slow")
    async with running(tmp_path) as (server, told):
        ready = await told.until(lambda state: state.state is READY)
        run = await fake.started(1)
        assert server.pid == run["pid"]
        assert server.url in ready.detail
        assert ready.run == 1
        assert told.kinds[:-1] == [LOADING] * len(told.kinds[:-1])
        assert any("loading the weights" in state.detail for state in told.states)
        before = trio.current_time()
    await gone(run["pid"])
    await gone(run["worker"])
    assert trio.current_time() - before < PATIENCE_S / 2
    assert "Load weight begin" in (tmp_path / "log" / "sglang.log").read_text()


async def test_the_flags_are_the_nodes_and_the_users_win(tmp_path: Path, fake: Fake) -> None:
    config = replace(CONFIG, args=("--page-size", "1", "--tp=2", "--device", "cpu"), page_size=16)
    async with running(tmp_path, config) as (server, told):
        await told.until(lambda state: state.state is READY)
        (run,) = fake.runs
        argv = run["argv"]
        value = {
            name: argv[argv.index(name) + 1] for name in argv if name.startswith("--") and name != "--tp=2"
        }
        assert argv.count("--page-size") == 1
        assert argv.count("--device") == 1
        assert argv[-5:] == list(config.args)
        assert value["--page-size"] == "1"
        assert value["--model-path"] == value["--served-model-name"] == "some/model"
        assert server.url == f"http://{value['--host']}:{value['--port']}"
        events = json.loads(value["--kv-events-config"])
        assert (events["endpoint"], events["bind"]) == (server.events_endpoint, True)
        assert events["replay_endpoint"] == server.replay_endpoint
        assert events["format"] == "dynamo", "an extra_key is in its blocks' names"
        assert "--enable-cache-report" in argv
        assert value["--attention-backend"] == "torch_native"
        assert run["env"]["SGLANG_USE_CPU_ENGINE"] == "1"


async def test_a_server_that_is_killed_is_started_again(tmp_path: Path, fake: Fake) -> None:
    """At once, as another run at another port; nothing of the one before is left."""
    async with running(tmp_path) as (server, told):
        await told.until(lambda state: state.state is READY)
        run, url = await fake.started(1), server.url
        os.kill(run["pid"], signal.SIGKILL)
        killed = await told.until(lambda state: state.state is RESTARTING)
        assert "killed by SIGKILL; starting it again in 0.05 s" in killed.detail
        assert killed.run == 1
        await gone(run["worker"])
        ready = await told.until(lambda state: state.state is READY and state.run == 2)
        assert server.url in ready.detail
        assert server.url != url


async def test_a_server_that_cannot_start_says_why_and_is_tried_ever_more_rarely(
    tmp_path: Path, fake: Fake
) -> None:
    """First it restarts, after some failures it is failing; and when the reason is gone it becomes ready."""
    fake.mode("crash")
    async with running(tmp_path) as (_, told):
        first = await told.until(lambda state: state.state is RESTARTING)
        reason = "ended with status 3 before it was ready: RuntimeError: Not enough memory. Please try to"
        assert reason in first.detail
        assert "in 0.05 s" in first.detail
        failing = await told.until(lambda state: state.state is FAILING)
        assert reason in failing.detail
        assert failing.run == 3
        assert "in 0.1 s" in failing.detail
        fake.mode("")
        await told.until(lambda state: state.state is READY)
    for run in fake.runs:
        await gone(run["worker"])


async def test_failing_health_checks_end_nothing_and_pass(tmp_path: Path, fake: Fake) -> None:
    """The same run is ready again afterwards: its cache is still there (situation 13)."""
    async with running(tmp_path) as (server, told):
        await told.until(lambda state: state.state is READY)
        fake.sick(True)
        failing = await told.until(lambda state: state.state is FAILING)
        assert "status 503" in failing.detail
        fake.sick(False)
        again = await told.until(lambda state: "answers again" in state.detail)
        assert (again.state, again.run) == (READY, 1)
        assert server.pid == fake.runs[0]["pid"]
    assert len(fake.runs) == 1


async def test_a_server_that_does_not_answer_is_failing_and_is_killed_in_the_end(
    tmp_path: Path, fake: Fake
) -> None:
    """Method: SIGSTOP, as a process that hangs. Doubts of somebody else have it checked at once."""
    config = replace(CONFIG, health_timeout_s=0.5, health_interval_s=600.0, hung_after_s=0.6)
    async with running(tmp_path, config) as (server, told):
        await told.until(lambda state: state.state is READY)
        run = await fake.started(1)
        os.kill(run["pid"], signal.SIGSTOP)
        for _ in range(2):
            server.check_soon()
            await trio.sleep(0.6)
        failing = await told.until(lambda state: state.state is FAILING)
        assert "no answer within 0.5 s" in failing.detail
        server.check_soon()
        restarting = await told.until(lambda state: state.state is RESTARTING)
        assert "health checks failed for" in restarting.detail
        await told.until(lambda state: state.state is READY and state.run == 2)
        await gone(run["pid"], run["worker"])


async def test_a_start_that_never_ends_is_cut_off(tmp_path: Path, fake: Fake) -> None:
    fake.mode("hang")
    async with running(tmp_path, replace(CONFIG, start_timeout_s=1.0)) as (_, told):
        cut = await told.until(lambda state: state.state is RESTARTING)
        assert "was not ready within 1 s" in cut.detail


async def test_a_server_that_ignores_the_request_to_end_is_killed(tmp_path: Path, fake: Fake) -> None:
    fake.mode("stubborn")
    async with running(tmp_path, replace(CONFIG, stop_grace_s=0.2)) as (_, told):
        await told.until(lambda state: state.state is READY)
    (run,) = fake.runs
    await gone(run["pid"])
    await gone(run["worker"])


async def test_a_server_dies_with_its_node(tmp_path: Path, fake: Fake) -> None:
    """Goal: no orphan that holds a GPU. Method: a node's process that is killed without mercy."""
    fake.mode("stubborn")
    node = (
        "import sys, pathlib, trio\n"
        "from peerinfer.config import EngineConfig\n"
        "from peerinfer.engine.sglang_process import ManagedServer\n"
        "async def main():\n"
        "    server = ManagedServer(EngineConfig(), model='m', log_path=pathlib.Path(sys.argv[1]))\n"
        "    async with server.run(lambda state: None):\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    paths = os.pathsep.join([str(FAKE), str(Path(__file__).parents[2])])
    command = [sys.executable, "-c", node, str(tmp_path / "log")]
    process = await trio.lowlevel.open_process(command, env=os.environ | {"PYTHONPATH": paths})
    try:
        run = await fake.started(1)
        process.kill()
        await gone(run["pid"])
    finally:
        process.kill()
        await process.wait()
        for run in fake.runs:
            if alive(run["worker"]):  # real workers ask for this themselves
                os.kill(run["worker"], signal.SIGKILL)


async def test_a_python_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there is no program /no/such/python"):
        ManagedServer(replace(CONFIG, python="/no/such/python"), model="m", log_path=tmp_path / "log")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("--model-path", "x"), "give --model NAME_OR_PATH to peerinfer"),
        (("--kv-events-config={}",), "peerinfer sets it"),
        (("tp", "2"), "'tp' is no flag"),
        (("--port", "http"), "a port is a number"),
    ],
)
def test_flags_that_are_not_the_users_are_refused(tmp_path: Path, args: tuple[str, ...], reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        ManagedServer(replace(CONFIG, args=args), model="m", log_path=tmp_path / "log")
