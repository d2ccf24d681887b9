"""Changes single members of a JSON object and leaves every other byte of it as it came.

A client's body goes on to a server that knows more than we do: a number's digits, the order of a schema's
properties and what its escapes look like are the client's business. So a body is never parsed and printed
again; the members that we set are cut out of its text, and ours follow at its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def with_members(raw: bytes, members: Mapping[str, object]) -> bytes:
    """The object with these members in place of those of the same names.

    Raises:
        ValueError: it is not UTF-8, or no JSON object.
    """
    text = raw.decode()
    kept = [text[begin:end] for name, begin, end in _members(text) if name not in members]
    ours = [f"{json.dumps(name)}:{json.dumps(value, ensure_ascii=False)}" for name, value in members.items()]
    return ("{" + ",".join(kept + ours) + "}").encode()


def _members(text: str) -> Iterator[tuple[object, int, int]]:
    """Name, begin and end of each member, in order."""
    at = _skip(text, _past(text, _skip(text, 0), "{"))
    if text.startswith("}", at):
        return
    while True:
        begin = at
        if not text.startswith('"', at):
            raise ValueError(f"a member's name was expected at character {at}")
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _past(text, _skip(text, at), ":"))
        _, at = _DECODER.raw_decode(text, at)
        yield name, begin, at
        at = _skip(text, at)
        if not text.startswith(",", at):
            _past(text, at, "}")
            return
        at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _past(text: str, at: int, mark: str) -> int:
    if not text.startswith(mark, at):
        raise ValueError(f"{mark!r} was expected at character {at}")
    return at + 1
