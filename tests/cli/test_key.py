"""`peerinfer key new`, and key files that must not be used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peerinfer.cli.errors import CommandError
from peerinfer.cli.key import read_api_key, read_swarm_key
from peerinfer.cli.main import peerinfer


def run(*arguments: str) -> Result:
    return CliRunner().invoke(peerinfer, list(arguments))


def test_a_new_key_is_private_new_and_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "my swarm.key"
    before = os.umask(0)
    try:
        done = run("key", "new", str(file))
    finally:
        os.umask(before)
    assert done.exit_code == 0
    assert f"--swarm-key '{file}'" in done.output
    made = read_swarm_key(file)
    assert made.secret.hex() not in done.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = run("key", "new", str(file))
    assert again.exit_code == 2
    assert again.output.count("\n") == 1
    assert read_swarm_key(file) == made
    run("key", "new", str(tmp_path / "other"))
    assert read_swarm_key(tmp_path / "other") != made


def test_without_a_name_it_is_called_swarm_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("key", "new").exit_code == 0
    assert read_swarm_key(Path("swarm.key"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o700])
def test_a_key_that_others_can_touch_is_not_used(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "swarm.key"
    run("key", "new", str(file))
    file.chmod(mode)
    for command in (("serve",), ("join", "/ip4/192.0.2.7/tcp/1/p2p/x"), ("bootstrap",)):
        done = run(*command, "--swarm-key", str(file))
        assert done.exit_code == 2
        assert done.output.count("\n") == 1
    with pytest.raises(CommandError, match=f"chmod 600 {file}"):
        read_swarm_key(file)


def test_an_api_key_is_the_first_line_of_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "api.key"
    file.write_text("s3cret \nand notes\n")
    file.chmod(0o644)
    with pytest.raises(CommandError, match="others can read or change this API key"):
        read_api_key(file)
    file.chmod(0o400)
    assert read_api_key(file) == "s3cret"
    file.chmod(0o600)
    for bad in ("", "\n", "two words", "pässword", "x" * 513):
        file.write_text(bad)
        with pytest.raises(CommandError, match="no API key") as raised:
            read_api_key(file)
        assert not bad.strip() or bad not in raised.value.format_message()


def test_a_file_that_is_no_key_or_not_there_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "swarm.key"
    file.write_bytes(b"/key/swarm/psk/1.0.0/\n/base16/\n" + b"ab" * 31 + b"\n")
    file.chmod(0o600)
    for path, said in (
        (file, "is no swarm key"),
        (tmp_path / "none", "No such file"),
        (tmp_path, "directory"),
    ):
        done = run("serve", "--engine", "simulated", "--swarm-key", str(path))
        assert done.exit_code == 2
        assert said in done.output
        assert done.output.count("\n") == 1
        assert "abab" not in done.output
