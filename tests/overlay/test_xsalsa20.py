"""XSalsa20 is the one of the paper and of libsodium."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_secretbox

from peerinfer.overlay.xsalsa20 import hsalsa20, xsalsa20


def test_hsalsa20_gives_the_keys_of_the_paper() -> None:
    """Bernstein, "Cryptography in NaCl", §8: the shared secret, the first and the second key."""
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    first = bytes.fromhex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389")
    second = bytes.fromhex("dc908dda0b9344a953629b733820778880f3ceb421bb61b91cbd4c3e66256ce4")
    assert hsalsa20(shared, bytes(16)) == first
    assert hsalsa20(first, bytes.fromhex("69696ee955b62b73cd62bda875fc73d6")) == second


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=24, max_size=24), st.lists(st.binary()))
def test_the_stream_is_that_of_libsodium_however_it_is_cut(
    key: bytes, nonce: bytes, pieces: list[bytes]
) -> None:
    """Method: a secretbox is XSalsa20 from byte 32 on, behind a tag of 16 bytes."""
    crypt = xsalsa20(key, nonce)
    crypt(bytes(32))
    assert b"".join(map(crypt, pieces)) == crypto_secretbox(b"".join(pieces), nonce, key)[16:]
