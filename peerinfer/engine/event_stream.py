"""Server-sent events out of a stream of bytes, as the HTML standard frames them; only `data` is kept."""

from __future__ import annotations


class EventStream:
    """Takes bytes as they come and gives the data of each event that they complete, byte for byte."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The events that end in these bytes.

        Raises:
            ValueError: an event is longer than `bytes_max`.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                piece = line[6:] if line.startswith(b"data: ") else line[5:]
                self._data.append(piece)
                self._size += len(piece)
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        if self._size + len(self._rest) > self._bytes_max:
            raise ValueError(f"an event of more than {self._bytes_max} bytes")
        return events
