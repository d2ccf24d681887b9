"""What a server that we started says: kept in a file of bounded size, and read for two things only.

While it starts, a few well-known lines tell how far it has come; when it has ended, its last words tell why.
Everything else in the log is for people, and no decision rests on it.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from pathlib import Path
from typing import IO

FILE_BYTES_MAX = 8 * 1024 * 1024
"""A longer file becomes `….1`, in place of the one before it."""
LINE_BYTES_MAX = 4096
"""Of a longer line the rest is kept in the file and not looked at (SGLang tells its 500 settings in one)."""
TAIL_LINES = 200
WORDS_MAX = 300

_PHASES = (
    (re.compile(r"Fetching \d+ files|Downloading "), "downloading the model"),
    (re.compile(r"Load weight begin"), "loading the weights"),
    (re.compile(r"Load weight end"), "allocating the KV cache"),
    (re.compile(r"Capture (?:\w+ )?cuda graph begin", re.IGNORECASE), "capturing CUDA graphs"),
    (re.compile(r"Application startup complete"), "warming up"),
)
_STAMP = re.compile(r"^\[[\d\- :.,]+(?: \w+)*\]\s*(?:\w+:\s+)?")
_ERROR = re.compile(
    r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Exit)\b.*:|: error: |\bsegmentation fault\b", re.IGNORECASE
)


class ServerLog:
    """The log of one server, over all its restarts. Used from one thread; the file is written at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._line = b""
        self.phase = ""
        """What the server is doing while it starts, in a few words; empty where it has not said."""

    def begin(self) -> None:
        """A new process speaks from here on."""
        if self._file is None:
            with contextlib.suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("ab", buffering=0)
        self._tail.clear()
        self._line, self.phase = b"", ""

    def feed(self, data: bytes) -> None:
        """The next bytes that the server wrote."""
        with contextlib.suppress(OSError):  # a full disk must not end the server that we read from
            self._write(data)
        # Progress bars end their lines with a bare carriage return.
        *lines, rest = (self._line + data).replace(b"\r", b"\n").split(b"\n")
        self._line = rest[:LINE_BYTES_MAX]
        for line in lines:
            self._read(line[:LINE_BYTES_MAX].decode("utf-8", "replace").strip())

    def last_words(self) -> str:
        """The line that most likely says why the server ended; empty if it said nothing."""
        lines = [
            _STAMP.sub("", line) for line in (*self._tail, self._line.decode("utf-8", "replace").strip())
        ]
        errors = [line for line in lines if _ERROR.search(line)]
        words = next(iter(reversed(errors or [line for line in lines if line])), "")
        return words if len(words) <= WORDS_MAX else words[: WORDS_MAX - 1] + "…"

    def close(self) -> None:
        """Close the file; `begin` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        self._file.write(data)
        if self._file.tell() > FILE_BYTES_MAX:
            self._file.close()
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._file = self.path.open("ab", buffering=0)

    def _read(self, line: str) -> None:
        if not line:
            return
        self._tail.append(line)
        for pattern, phase in _PHASES:
            if pattern.search(line):
                self.phase = phase
