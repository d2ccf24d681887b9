"""The key of a closed swarm: 32 random bytes that every member has, and how they are written to a file.

The format is that of other libp2p implementations, so that one file serves them all:

    /key/swarm/psk/1.0.0/
    /base16/
    <64 hexadecimal digits>

`/base64/` and `/bin/` are read as well. The key itself never shows in a repr, hence in no log; `key_id` is
what may be shown.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from hashlib import blake2b

SECRET_BYTES = 32
KEY_FILE_BYTES_MAX = 1024
"""A file that is longer is none; nothing of it is parsed."""

_HEADER = b"/key/swarm/psk/1.0.0/"
_ID_PERSON = b"peerinfer key id"


class SwarmKeyError(ValueError):
    """It is no swarm key; the message says what is wrong with it and quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class SwarmKey:
    """The secret that members of a closed swarm share."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise SwarmKeyError(f"a swarm key has {SECRET_BYTES} bytes, this one {len(self.secret)}")

    @property
    def key_id(self) -> str:
        """A name for the key that tells nothing about it: whoever shows the same one has the same key."""
        return blake2b(self.secret, digest_size=4, person=_ID_PERSON).hexdigest()


def format_swarm_key(key: SwarmKey) -> bytes:
    """The content of a key file."""
    return b"%s\n/base16/\n%s\n" % (_HEADER, key.secret.hex().encode("ascii"))


def parse_swarm_key(content: bytes) -> SwarmKey:
    """The key in a file's content. Raises SwarmKeyError."""
    if len(content) > KEY_FILE_BYTES_MAX:
        raise SwarmKeyError("it is too long for a swarm key")
    header, _, rest = content.partition(b"\n")
    encoding, _, body = rest.partition(b"\n")
    if header.strip() != _HEADER:
        raise SwarmKeyError(f"its first line is not {_HEADER.decode()}")
    return SwarmKey(_decode(encoding.strip(), body))


def _decode(encoding: bytes, body: bytes) -> bytes:
    try:
        if encoding == b"/base16/":
            return binascii.unhexlify(body.strip())
        if encoding == b"/base64/":
            return base64.b64decode(body.strip(), validate=True)
    except ValueError:
        raise SwarmKeyError(f"its third line is not {encoding.decode().strip('/')}") from None
    if encoding == b"/bin/":
        return body
    raise SwarmKeyError("its second line is none of /base16/, /base64/ and /bin/")
