"""A key file says the key that other libp2p implementations read from it, and an error says nothing of it."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.core.page_keys import derive_salt
from peerinfer.core.swarm_key import SwarmKey, SwarmKeyError, format_swarm_key, parse_swarm_key

HEADER = b"/key/swarm/psk/1.0.0/\n"
SECRET = bytes(range(32))


@given(st.binary(min_size=32, max_size=32))
def test_a_key_is_read_as_it_was_written(secret: bytes) -> None:
    key = SwarmKey(secret)
    assert parse_swarm_key(format_swarm_key(key)) == key
    assert secret.hex() not in repr(key)


@pytest.mark.parametrize(
    "body",
    [
        b"/base16/\n" + SECRET.hex().encode(),
        b"/base16/\r\n" + SECRET.hex().upper().encode() + b"\r\n\r\n",
        b"/base64/\n" + base64.b64encode(SECRET) + b"\n",
        b"/bin/\n" + SECRET,
    ],
)
def test_the_encodings_of_other_implementations_are_read(body: bytes) -> None:
    assert parse_swarm_key(HEADER + body).secret == SECRET


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "first line"),
        (b"-----BEGIN OPENSSH PRIVATE KEY-----\n", "first line"),
        (HEADER, "second line"),
        (HEADER + b"/base32/\n" + SECRET.hex().encode(), "second line"),
        (HEADER + b"/base16/\n" + SECRET.hex().encode()[:-2], "32 bytes, this one 31"),
        (HEADER + b"/base16/\n" + SECRET.hex().encode()[:-1], "base16"),
        (HEADER + b"/base16/\n" + b"x" * 64, "base16"),
        (HEADER + b"/base64/\n" + b"\xff" * 44, "base64"),
        (HEADER + b"/bin/\n" + SECRET + b"\n", "32 bytes, this one 33"),
        (HEADER + b"/base16/\n" + b"00" * 600, "too long"),
    ],
)
def test_what_is_no_key_is_an_error_that_quotes_nothing(content: bytes, reason: str) -> None:
    with pytest.raises(SwarmKeyError, match=reason) as caught:
        parse_swarm_key(content)
    assert SECRET.hex()[:8] not in str(caught.value)


def test_the_id_names_a_key_and_differs_from_its_salt() -> None:
    """Goal: what is shown of a key is no part of what it protects."""
    key, other = SwarmKey(SECRET), SwarmKey(SECRET[::-1])
    assert key.key_id == SwarmKey(SECRET).key_id != other.key_id
    assert key.key_id not in derive_salt(key.secret).hex()
    assert key.key_id not in key.secret.hex()
