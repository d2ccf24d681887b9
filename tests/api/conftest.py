"""A face on a free port of the loopback, for every test of this folder."""

from __future__ import annotations

import pytest
import trio

from peerinfer.api.server import serve_http
from peerinfer.config import HttpConfig
from tests.api.scripted import Face, ScriptedNode


@pytest.fixture
def node() -> ScriptedNode:
    return ScriptedNode()


@pytest.fixture
async def face(nursery: trio.Nursery, node: ScriptedNode) -> Face:
    """The face of `node` on a free port of the loopback."""
    config = HttpConfig(port=0, port_is_default=False, body_bytes_max=100_000)
    return Face(await nursery.start(serve_http, node, config), node)


@pytest.fixture
async def open_face(nursery: trio.Nursery, node: ScriptedNode) -> Face:
    """The same, with overrides allowed."""
    config = HttpConfig(port=0, port_is_default=False, allow_overrides=True)
    return Face(await nursery.start(serve_http, node, config), node)
