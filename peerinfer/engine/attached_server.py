"""A server that somebody else runs: whether it answers is all that a node can know, and watch.

A server that nobody listens for any more is gone at once, one that answers too slowly after a few checks. It
is asked for ever: it may come back, and a node whose server is away serves through its peers meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import trio

from peerinfer.config import EngineConfig
from peerinfer.core.types import EngineState
from peerinfer.engine.sglang_process import Report, ServerState

START_POLL_S = 0.5
"""Between two looks at a server that does not answer."""
PATHS = ("/health", "/v1/models")
"""What shows that a server is well: the second where the first is unknown."""


class AttachedServer:
    """One server at a fixed URL, and its health."""

    def __init__(self, config: EngineConfig, *, key: str = "") -> None:
        self.url = config.url
        self._config = config
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._path = PATHS[0]
        self._hurry = trio.Event()
        self._said = ""

    @asynccontextmanager
    async def run(self, report: Report) -> AsyncIterator[None]:
        """Watch the server until the block is left. Entering does not wait for it: `report` tells."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, report)
            yield
            nursery.cancel_scope.cancel()

    def check_soon(self) -> None:
        """Ask for the server's health now: somebody has reason to doubt it."""
        self._hurry.set()

    async def _watch(self, report: Report) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)  # each check proves that it still accepts
        async with httpx.AsyncClient(
            base_url=self.url,
            timeout=self._config.health_timeout_s,
            limits=limits,
            headers=self._headers,
            trust_env=False,
        ) as client:
            state = EngineState.LOADING
            while True:
                await self._until_healthy(client, report, state)
                self._say(report, EngineState.READY, f"the server at {self.url} answers")
                why = await self._while_healthy(client)
                state = EngineState.FAILING
                self._say(report, state, why)

    async def _until_healthy(self, client: httpx.AsyncClient, report: Report, state: EngineState) -> None:
        while why := (await self._check(client))[0]:
            self._say(report, state, f"{self.url} does not answer: {why}")
            await trio.sleep(START_POLL_S)

    async def _while_healthy(self, client: httpx.AsyncClient) -> str:
        """Returns why it is healthy no longer."""
        failed = 0
        while True:
            with trio.move_on_after(self._config.health_interval_s):
                await self._hurry.wait()
            self._hurry = trio.Event()
            why, gone = await self._check(client)
            failed = failed + 1 if why else 0
            if gone or failed >= self._config.health_failures_max:
                return f"{self.url} does not answer any more: {why}"

    async def _check(self, client: httpx.AsyncClient) -> tuple[str, bool]:
        """Why the server is not healthy, empty if it is; and whether there is none at all."""
        try:
            answer = await client.get(self._path)
            if answer.status_code == 404 and self._path == PATHS[0]:
                self._path = PATHS[1]
                answer = await client.get(self._path)
        except httpx.ConnectError as error:
            return str(error) or "nobody listens", True
        except httpx.TimeoutException:
            return f"nothing within {self._config.health_timeout_s:.3g} s", False
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__, False
        return ("" if answer.is_success else f"status {answer.status_code}"), False

    def _say(self, report: Report, state: EngineState, detail: str) -> None:
        """Once for every change."""
        if (said := f"{state} {detail}") != self._said:
            self._said = said
            report(ServerState(state=state, detail=detail, run=1))
