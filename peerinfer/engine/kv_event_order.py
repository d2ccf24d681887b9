"""Whether a cache event message is the next one, was seen already, or shows that something is missing.

A publisher numbers its messages from 0 on. A higher number than expected means that some were lost; a lower
one is either a repeat (a replay and the live stream overlap) or a publisher that began again. Payloads tell
the two apart: each carries its time, so the same number with another payload is another life.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

REMEMBERED = 4096
"""Messages whose payload is remembered: more than a live stream can lag behind a replay (`QUEUE_MAX`)."""


class Verdict(Enum):
    """What a message is."""

    NEXT = auto()
    REPEAT = auto()
    GAP = auto()
    RESTART = auto()


class EventOrder:
    """The place in one publisher's sequence of messages."""

    def __init__(self) -> None:
        self.next_seq = 0
        self._recent: deque[int] = deque(maxlen=REMEMBERED)

    @property
    def anchor(self) -> int | None:
        """The last message that was taken; None while there is none."""
        return self.next_seq - 1 if self._recent else None

    def judge(self, seq: int, payload: bytes) -> Verdict:
        """What this message is. Changes nothing."""
        if seq >= self.next_seq:
            return Verdict.NEXT if seq == self.next_seq else Verdict.GAP
        place = len(self._recent) - (self.next_seq - seq)
        known = place >= 0 and self._recent[place] == hash(payload)
        return Verdict.REPEAT if known else Verdict.RESTART

    def take(self, seq: int, payload: bytes) -> None:
        """This message is the last one now; what came before it is remembered only if it is the next."""
        if seq != self.next_seq:
            self._recent.clear()
        self.next_seq = seq + 1
        self._recent.append(hash(payload))

    def forget(self) -> None:
        """Begin at 0 again."""
        self.next_seq = 0
        self._recent.clear()
