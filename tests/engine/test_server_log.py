"""What is read from a server's log, and that it stays small."""

from __future__ import annotations

from pathlib import Path

import pytest

from peerinfer.engine import server_log
from peerinfer.engine.server_log import WORDS_MAX, ServerLog


def log_of(path: Path, *pieces: bytes) -> ServerLog:
    log = ServerLog(path)
    log.begin()
    for piece in pieces:
        log.feed(piece)
    return log


def test_the_steps_of_a_start_are_recognised_however_the_bytes_are_cut(tmp_path: Path) -> None:
    """Progress bars rewrite their line with carriage returns."""
    text = (
        b"importing\n[2026-11-30 07:54:48] Load weight begin. avail mem=21.21 GB\n"
        b"shards:   0%|\rshards: 100%|\r\n[2026-11-30 07:54:50] Load weight end. elapsed=0.76 s\n"
        b"[2026-11-30 07:54:51] INFO:     Application startup complete.\n"
    )
    for size in (1, 7, len(text)):
        log = ServerLog(tmp_path / "log")
        log.begin()
        phases = [log.phase]
        for at in range(0, len(text), size):
            log.feed(text[at : at + size])
            phases.append(log.phase)
        assert phases[0] == ""
        if size < len(text):
            steps = list(dict.fromkeys(phases))
            assert steps == ["", "loading the weights", "allocating the KV cache", "warming up"]
        assert log.phase == "warming up"
        log.begin()
        assert log.phase == ""
        log.close()
    assert (tmp_path / "log").read_bytes() == 3 * text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", ""),
        (b"all is well\n\n", "all is well"),
        (
            b"[2026-11-30 07:54:50 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
            b"  File x.py\nRuntimeError: Not enough memory.\n\n[2026-11-30 07:54:51] Received sigquit",
            "RuntimeError: Not enough memory.",
        ),
        (
            b"usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: --foo\n",
            "launch_server.py: error: unrecognized arguments: --foo",
        ),
        (
            b"torch.cuda.OutOfMemoryError: CUDA out of memory.\nbye\n",
            "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        ),
    ],
)
def test_the_last_words_say_why(tmp_path: Path, text: bytes, words: str) -> None:
    log = log_of(tmp_path / "log", text)
    assert log.last_words() == words
    log.close()


def test_long_lines_are_cut_and_long_files_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_log, "FILE_BYTES_MAX", 10_000)
    log = log_of(tmp_path / "log", *[b"x" * 999 + b"\n"] * 35, b"Error: " + b"y" * 100_000)
    assert log.last_words() == "Error: " + "y" * (WORDS_MAX - 8) + "…"
    log.close()
    assert {file.name for file in tmp_path.iterdir()} == {"log", "log.1"}
    assert (tmp_path / "log").stat().st_size == 0


def test_a_disk_that_cannot_be_written_costs_the_file_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = log_of(tmp_path / "file" / "log", b"ValueError: no\n")
    assert log.last_words() == "ValueError: no"
    log.close()
