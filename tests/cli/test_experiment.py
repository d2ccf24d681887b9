"""`peerinfer experiment` from the command line, on generated prompts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peerinfer.cli.main import peerinfer
from tests.cli.processes import wait_until


def invoke(out: Path, *options: str) -> Result:
    command = ["experiment", "table2", "--requests", "24", "--subjects-max", "3", "--jobs", "1"]
    return CliRunner().invoke(peerinfer, [*command, "--out", str(out), *options])


def test_the_same_command_gives_the_same_tables_without_measuring_again(tmp_path: Path) -> None:
    """Method: run it twice into one directory and once into another."""
    first, again = invoke(tmp_path / "a"), invoke(tmp_path / "a")
    assert first.exit_code == 0, first.output
    assert "6 measurements, 0 of them done before; the others have 144 requests" in first.stderr
    assert f"The results are in {tmp_path / 'a'}." in first.stderr
    assert "measurements" not in again.stderr
    assert first.stdout == again.stdout
    assert "Digest of all measurements" in first.stdout
    assert "the prompts are generated" in first.stdout
    anew = invoke(tmp_path / "b")
    assert anew.stdout == first.stdout
    names = {file.name for file in (tmp_path / "a").iterdir()}
    assert names == {"cells", "table2.md", "table2.csv", "table2_served.csv", "table2.json"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--subject", "astrology"], "--subject: MMLU has no astrology"),
        (["--data", "."], "has no mmlu/dev"),
        (["--policy", "local"], "is not one of"),
    ],
)
def test_what_cannot_be_measured_is_told_in_one_line(
    tmp_path: Path, options: list[str], complaint: str
) -> None:
    result = invoke(tmp_path, *options)
    assert result.exit_code == 2
    assert complaint in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_its_workers_end_when_it_is_killed(tmp_path: Path) -> None:
    """Method: SIGKILL it while it measures; a worker then waits for work that nobody can give it."""
    command = [
        sys.executable,
        "-m",
        "peerinfer",
        "experiment",
        "table2",
        "--jobs",
        "2",
        "--out",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as run:
        wait_until(lambda: bool(workers_of(run.pid)), what="it has workers")
        workers = workers_of(run.pid)
        run.kill()
    wait_until(lambda: not any(command_of(pid) for pid in workers), what="they end")


def workers_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in command_of(int(child))]


def command_of(pid: int) -> bytes:
    """Empty if it is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
