"""An invite: addresses and key of a swarm in one string that survives chat windows and shells.

    pinv1 + base58(payload ‖ checksum)

The payload is a CBOR map (`a`: full multiaddrs, `k`: the swarm's key, absent in an open swarm), the checksum
4 bytes of blake2b over it, so that a character lost in copying is told as such and not as a node that does
not answer. base58 has no characters that line breaking or a double click would stop at. Whoever has the
invite of a closed swarm has its key. Exact bytes: docs/protocol.md, "Invites".
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import base58
import cbor2

from peerinfer.core.errors import WireError
from peerinfer.core.swarm_key import SECRET_BYTES, SwarmKey
from peerinfer.core.wire import is_label, read_map

INVITE_CHARS_MAX = 4096
ADDRESSES_MAX = 8
ADDRESS_CHARS_MAX = 256
_FAMILY = "pinv"
_PREFIX = "pinv1"
_CHECKSUM_BYTES = 4
_PERSON = b"peerinfer invite"


class InviteError(ValueError):
    """It is no invite that this version can read; the message says why and quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Invite:
    """Whom to join, and with what key."""

    addrs: tuple[str, ...]
    key: SwarmKey | None


def is_invite(text: str) -> bool:
    """Whether this is meant to be an invite, whole or not."""
    return text.startswith(_FAMILY)


def encode_invite(invite: Invite) -> str:
    """The string to hand over."""
    assert 0 < len(invite.addrs) <= ADDRESSES_MAX, len(invite.addrs)
    assert all(is_label(addr, chars_max=ADDRESS_CHARS_MAX) for addr in invite.addrs)
    fields: dict[str, object] = {"a": list(invite.addrs)}
    if invite.key is not None:
        fields["k"] = invite.key.secret
    payload = cbor2.dumps(fields)
    return _PREFIX + base58.b58encode(payload + _checksum(payload)).decode("ascii")


def decode_invite(text: str) -> Invite:
    """What an invite says. Raises InviteError."""
    if len(text) > INVITE_CHARS_MAX:
        raise InviteError("this is too long for an invite")
    if not text.startswith(_PREFIX):
        raise InviteError("this is no invite of this version of peerinfer")
    try:
        content = base58.b58decode(text.removeprefix(_PREFIX))
    except ValueError:
        raise InviteError("the invite is damaged: copy it whole") from None
    payload, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    if checksum != _checksum(payload):
        raise InviteError("the invite is damaged: copy it whole")
    try:
        return _read(payload)
    except WireError as error:
        raise InviteError(f"the invite is none: {error}") from None


def _read(payload: bytes) -> Invite:
    fields = read_map(payload, bytes_max=INVITE_CHARS_MAX)
    addrs = fields.labels("a", items_max=ADDRESSES_MAX, chars_max=ADDRESS_CHARS_MAX)
    if not addrs:
        raise WireError("a: no address")
    if not fields.has("k"):
        return Invite(addrs, None)
    return Invite(addrs, SwarmKey(fields.blob("k", bytes_min=SECRET_BYTES, bytes_max=SECRET_BYTES)))


def _checksum(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=_CHECKSUM_BYTES, person=_PERSON).digest()
