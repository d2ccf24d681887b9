"""Peers for the tests of the real overlay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from tests.contract.overlay_worlds import LibP2PWorld


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[LibP2PWorld]:
    """Real hosts on loopback."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        yield LibP2PWorld(nursery, stack, tmp_path)
        nursery.cancel_scope.cancel()
