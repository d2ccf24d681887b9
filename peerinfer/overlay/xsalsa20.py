"""XSalsa20, the stream cipher of libp2p's private networks, out of Salsa20.

Salsa20 takes nonces of 8 bytes, too short to be drawn at random; XSalsa20 (Bernstein, "Extending the Salsa20
nonce") takes 24: HSalsa20 makes a key of its own from the first 16, and Salsa20 goes on with the last 8. The
library uses Salsa20 itself, so its private networks are none that other implementations could join.
Only HSalsa20, 64 bytes once per direction of a connection, is ours; the cipher is pycryptodome's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from Crypto.Cipher import Salsa20

NONCE_BYTES = 24
_CONSTANT = struct.unpack("<4I", b"expand 32-byte k")
_MASK = 0xFFFFFFFF
_QUARTERS = (
    ((0, 4, 8, 12), (5, 9, 13, 1), (10, 14, 2, 6), (15, 3, 7, 11)),  # columns
    ((0, 1, 2, 3), (5, 6, 7, 4), (10, 11, 8, 9), (15, 12, 13, 14)),  # rows
)
_DOUBLE_ROUNDS = 10


def xsalsa20(key: bytes, nonce: bytes) -> Callable[[bytes], bytes]:
    """Encrypts, or decrypts, one stream from its start, piece by piece."""
    assert len(nonce) == NONCE_BYTES, len(nonce)
    cipher = Salsa20.new(key=hsalsa20(key, nonce[:16]), nonce=nonce[16:])
    crypt: Callable[[bytes], bytes] = cipher.encrypt
    return crypt


def hsalsa20(key: bytes, nonce: bytes) -> bytes:
    """The key that belongs to 16 bytes of nonce."""
    k, n = struct.unpack("<8I", key), struct.unpack("<4I", nonce)
    c = _CONSTANT
    x = [c[0], *k[:4], c[1], *n, c[2], *k[4:], c[3]]
    for _ in range(_DOUBLE_ROUNDS):
        for quarters in _QUARTERS:
            for quarter in quarters:
                _mix(x, *quarter)
    return struct.pack("<8I", *(x[i] for i in (0, 5, 10, 15, 6, 7, 8, 9)))


def _mix(x: list[int], a: int, b: int, c: int, d: int) -> None:
    """The quarter round."""
    x[b] ^= _rotated(x[a] + x[d], 7)
    x[c] ^= _rotated(x[b] + x[a], 9)
    x[d] ^= _rotated(x[c] + x[b], 13)
    x[a] ^= _rotated(x[d] + x[c], 18)


def _rotated(word: int, bits: int) -> int:
    word &= _MASK
    return (word << bits | word >> (32 - bits)) & _MASK
