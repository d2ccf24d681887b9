"""Every life of a node is above its former one, whatever the clock and the disk do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from peerinfer.node.incarnation import stored_incarnations


def test_each_start_is_above_the_last_even_if_the_clock_jumped_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node" / "incarnation"
    first = stored_incarnations(path)(0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert stored_incarnations(path)(0) == first + 1


def test_a_renewal_goes_above_what_peers_remember(tmp_path: Path) -> None:
    next_incarnation = stored_incarnations(tmp_path / "incarnation")
    far = next_incarnation(0) * 10
    assert next_incarnation(far) == far + 1


def test_a_broken_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "incarnation"
    path.write_text("not a number")
    assert stored_incarnations(path)(0) == int(path.read_text()) > 0
