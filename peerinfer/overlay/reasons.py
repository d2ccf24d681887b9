"""Why a connection did not come about, in words that a person can act on.

The library tells it in words for whoever wrote the library. What is not known here is passed on as it is: a
reason that nobody understands is better than none.
"""

from __future__ import annotations

import re

_OTHER_PEER = re.compile(r"peer id does not correspond .*from_pubkey=(\w+)")
_KNOWN = (
    ("Connection refused", "nobody listens there: is the peer up, and is that still its port?"),
    ("No route to host", "there is no way to that address from this machine"),
    ("Network is unreachable", "there is no way to that address from this machine"),
    ("Name or service not known", "no such name"),
    (
        "Connection closed during read operation",
        "it hung up during the handshake: it may have expected another peer, or not want this one",
    ),
)
NO_ANSWER = "no answer within {:g} s: is the machine up, and does a firewall let this port through?"


def root_of(error: BaseException) -> str:
    """What is at the bottom of the library's nested errors, in a few words."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif error.__cause__ is not None:
            error = error.__cause__
        else:
            return plain(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def plain(reason: str) -> str:
    """The reason in our words, where there are some."""
    if other := _OTHER_PEER.search(reason):
        return (
            f"peer {other[1]} is there, and not the one in the address: join the address that it prints now"
            " (its id changes with its --data-dir)"
        )
    return next((ours for theirs, ours in _KNOWN if theirs in reason), reason)
