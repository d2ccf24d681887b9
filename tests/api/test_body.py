"""Reading a body, piece by piece."""

from __future__ import annotations

import tracemalloc

from peerinfer.api.body import read_body

PIECES = 100_000


async def test_body_in_tiny_pieces_takes_no_more_memory_than_its_bytes() -> None:
    """A client chooses the size of its chunks: an object for each is many times what they carry."""
    left = PIECES

    async def receive() -> dict[str, object]:
        nonlocal left
        left -= 1
        piece = b"%02d" % (left % 100)
        return {"type": "http.request", "body": piece, "more_body": left > 0}

    tracemalloc.start()
    try:
        body = await read_body([], receive, bytes_max=2 * PIECES)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(body) == 2 * PIECES
    assert most < 5 * len(body)
