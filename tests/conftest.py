"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from peerinfer.sim.runtime import seeded_scheduling
from tests.real_sglang import RealServer, real_server

# No time limits: the machine may be busy, and an example that takes long is not wrong.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def one_order_of_tasks() -> Iterator[None]:
    """trio draws the order in which tasks run: the same one in every run of a test."""
    with seeded_scheduling(0):
        yield


@pytest.fixture(scope="session")
def sglang_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """One real SGLang for all tests marked `sglang` that need no other; leave it idle and as it was."""
    # Its template shows plain chats as the model's own does, and tools besides.
    template = str(Path(__file__).parent / "engine" / "tools.jinja")
    args = ("--chat-template", template, "--tool-call-parser", "hermes", "--chunked-prefill-size", "256")
    with real_server(tmp_path_factory.mktemp("sglang"), *args) as server:
        yield server
