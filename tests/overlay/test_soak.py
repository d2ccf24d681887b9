"""A short run of the soak."""

from __future__ import annotations

from pathlib import Path

from tests.overlay.soak import soak

CYCLES = 500


async def test_the_overlay_outlives_cancels_garbage_a_freeze_and_a_kill(tmp_path: Path) -> None:
    """Goal: nothing that a caller or a peer does costs more than its own call. Method: soak.py, shortened."""
    outcome = await soak(CYCLES, tmp_path)
    assert outcome.complete + outcome.cancelled == CYCLES
    assert outcome.complete > CYCLES / 8
    assert outcome.garbage == CYCLES / 50
    assert (outcome.lost, outcome.links_lost) == (0, 0)
    assert outcome.streams_left < 40
    assert outcome.killed_noticed_s < 3
    assert outcome.back_s < 5
