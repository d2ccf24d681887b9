"""The file of known peers helps when it can, and never harms."""

from __future__ import annotations

from pathlib import Path

import pytest

from peerinfer.core.types import PeerId
from peerinfer.node.ports import Link
from peerinfer.overlay.known_peers import (
    KNOWN_PEERS_FILE,
    KNOWN_PEERS_MAX,
    load_known_peers,
    save_known_peers,
)


def links(count: int) -> dict[PeerId, Link]:
    return {PeerId(f"p{n}"): Link(addrs=(f"/ip4/10.0.0.1/tcp/{n + 1}",)) for n in range(count)}


def test_peers_with_addresses_are_remembered(tmp_path: Path) -> None:
    save_known_peers(tmp_path, {**links(2), PeerId("nowhere"): Link(addrs=())})
    assert load_known_peers(tmp_path) == {peer: link.addrs for peer, link in links(2).items()}


def test_a_lonely_stop_forgets_nobody(tmp_path: Path) -> None:
    save_known_peers(tmp_path, links(2))
    save_known_peers(tmp_path, {})
    assert len(load_known_peers(tmp_path)) == 2


def test_the_file_is_bounded(tmp_path: Path) -> None:
    save_known_peers(tmp_path, links(KNOWN_PEERS_MAX + 10))
    assert len(load_known_peers(tmp_path)) == KNOWN_PEERS_MAX


@pytest.mark.parametrize("content", ["", "[]", "{", '{"p": 1}', '{"p": [1, {}]}', "\x00"])
def test_a_file_that_makes_no_sense_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / KNOWN_PEERS_FILE).write_text(content)
    assert not any(load_known_peers(tmp_path).values())


def test_a_directory_that_is_gone_is_told_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_known_peers(tmp_path / "gone", links(1))
    assert "cannot be written" in caplog.text
