"""Messages on a byte stream: each is preceded by its length as an unsigned varint (docs/protocol.md).

Pure: bytes in, whole payloads out. A length above the limit, or one written in more bytes than any
sane length needs, is the sender's error and is told before a byte of the payload is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from peerinfer.core.errors import WireError

UVARINT_BYTES_MAX = 5  # lengths below 2^35


def with_length(payload: bytes) -> bytes:
    """The payload as it goes on the wire."""
    length = len(payload)
    prefix = bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + payload


class Deframer:
    """Collects the bytes of one stream and gives back its messages."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    @property
    def unfinished_bytes(self) -> int:
        """What is there of a message that is not complete yet."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The messages that this chunk completes.

        Raises:
            WireError: a length is over the limit or malformed; nothing after it can be understood.
        """
        self._buffer += chunk
        start = 0
        while True:
            head = self._length_at(start)
            if head is None:
                break
            length, body = head
            if len(self._buffer) - body < length:
                break
            start = body + length
            yield bytes(self._buffer[body:start])
        del self._buffer[:start]

    def _length_at(self, start: int) -> tuple[int, int] | None:
        """The length written at `start` and where its message begins; None if it is not all there."""
        length = 0
        for index, byte in enumerate(self._buffer[start : start + UVARINT_BYTES_MAX]):
            length |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if length > self._bytes_max:
                    raise WireError(f"length: {length} bytes, the limit is {self._bytes_max}")
                return length, start + index + 1
        if len(self._buffer) - start >= UVARINT_BYTES_MAX:
            raise WireError("length: not an uvarint")
        return None
