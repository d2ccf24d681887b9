"""The least of HTTP/1.1 that a worker and a client need of each other, on asyncio's protocols."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Message:
    """A request or a response, without its body."""

    first_line: bytes
    headers: dict[bytes, bytes] = field(default_factory=dict)
    """Names in lower case."""

    @property
    def length(self) -> int | None:
        """The body's length; None where it is not said."""
        value = self.headers.get(b"content-length")
        return None if value is None else int(value)

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()


def take_head(buffer: bytearray) -> Message | None:
    """Cut the head off; None while it is not all there."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = bytes(buffer[:end]).split(b"\r\n")
    del buffer[: end + 4]
    message = Message(first)
    for line in lines:
        name, _, value = line.partition(b":")
        message.headers[name.strip().lower()] = value.strip()
    return message


def take_chunks(buffer: bytearray) -> tuple[bytes, bool]:
    """Cut the chunks off that are complete: their content, and whether the last one was among them."""
    content, at = [], 0
    while True:
        line = buffer.find(b"\r\n", at)
        if line < 0:
            break
        size = int(bytes(buffer[at:line]).split(b";")[0], 16)
        end = line + 2 + size
        if len(buffer) < end + 2:
            break
        content.append(bytes(buffer[line + 2 : end]))
        at = end + 2
        if size == 0:
            del buffer[:at]
            return b"".join(content), True
    del buffer[:at]
    return b"".join(content), False
