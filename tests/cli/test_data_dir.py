"""The data directory's lock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peerinfer.cli.data_dir import default_data_dir, lock
from peerinfer.cli.errors import CommandError


def test_a_locked_directory_is_refused_and_names_who_has_it(tmp_path: Path) -> None:
    """`flock` belongs to the open file, so one process can play both."""
    with lock(tmp_path / "node"), pytest.raises(CommandError) as raised, lock(tmp_path / "node"):
        pass
    assert f"in use by process {os.getpid()}" in raised.value.format_message()
    assert raised.value.exit_code == 2


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with lock(tmp_path / "node") as path:
            assert path.stat().st_mode & 0o777 == 0o700


def test_a_path_that_is_no_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="cannot use "), lock(tmp_path / "file"):
        pass


def test_nodes_on_one_machine_have_directories_of_their_own() -> None:
    assert default_data_dir(8000) != default_data_dir(8001)
