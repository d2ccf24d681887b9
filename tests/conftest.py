"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real_sglang import RealServer, real_server


@pytest.fixture(scope="session")
def sglang_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """One real SGLang for all tests marked `sglang` that need no other; leave it idle and as it was."""
    with real_server(tmp_path_factory.mktemp("sglang")) as server:
        yield server
