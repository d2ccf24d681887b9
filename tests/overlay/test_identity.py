"""The key in the data directory: private, lasting, complete or not there."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from libp2p.peer.id import ID

from peerinfer.overlay.identity import KEY_FILE, IdentityError, load_or_create_identity


def peer_id(data_dir: Path) -> str:
    return ID.from_pubkey(load_or_create_identity(data_dir).public_key).to_base58()


def test_the_identity_lasts(tmp_path: Path) -> None:
    first = peer_id(tmp_path / "new" / "data")
    assert first.startswith("12D3KooW")
    assert peer_id(tmp_path / "new" / "data") == first


def test_nobody_else_can_read_a_new_key(tmp_path: Path) -> None:
    peer_id(tmp_path)
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


def test_a_key_that_others_can_read_is_made_private_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = peer_id(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o644)
    assert peer_id(tmp_path) == first
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert "others could read" in caplog.text


def test_a_file_that_is_no_key_is_named(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"garbage")
    with pytest.raises(IdentityError, match=KEY_FILE):
        load_or_create_identity(tmp_path)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match="file"):
        load_or_create_identity(tmp_path / "file" / "data")


def test_all_who_start_at_once_agree(tmp_path: Path) -> None:
    """Goal: whoever comes second takes the first's key. Method: eight threads on one empty directory."""
    found: list[str] = []
    gate = threading.Barrier(8)

    def start() -> None:
        gate.wait()
        found.append(peer_id(tmp_path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert os.listdir(tmp_path) == [KEY_FILE]
