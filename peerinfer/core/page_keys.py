"""The names of cache pages: each key names a whole prefix, so equal keys mean equal prefixes.

A prompt is cut into pages of `page_size` tokens, and only whole pages have keys. The keys are a chain:

    key_i = blake2b(digest_size=8, key=salt, key_{i-1} ‖ tokens_i as uint32 little-endian)

where key_0 is nothing, or a hash of what else changes the computation. So a set of keys that is closed
under parents is the radix tree of paper §2, and no text of a prompt can be read from one. Exact bytes:
docs/protocol.md, "Page keys"; fixed vectors: tests/vectors/page_keys.json.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

from peerinfer.core.types import PageKey

KEY_BYTES = 8
SALT_BYTES = 32
_TOKEN_BYTES = 4
_SALT_PERSON = b"peerinfer salt"
_CONTEXT_PERSON = b"peerinfer key_0"


class PageHasher:
    """Computes page keys; two nodes' keys agree if salt, page size and tokens do."""

    def __init__(self, *, salt: bytes, page_size: int) -> None:
        """`salt` as `derive_salt` gives it; `page_size` in tokens."""
        if page_size < 1:
            raise ValueError(f"page_size is {page_size}; a page has at least one token")
        self.page_size = page_size
        self._salt = salt
        self._base = blake2b(digest_size=KEY_BYTES, key=salt)

    def keys(self, token_ids: Sequence[int], *, context: bytes = b"") -> list[PageKey]:
        """The keys of a prompt's whole pages, in order; a last partial page has none.

        `context` is what else changes the computation (LoRA adapter, cache salt), in one canonical
        spelling. Raises ValueError for a token id that is no uint32.
        """
        return self.extend(None, token_ids, context=context)

    def extend(
        self, parent: PageKey | None, token_ids: Sequence[int], *, context: bytes = b""
    ) -> list[PageKey]:
        """The keys of pages that follow `parent`; None is a prompt's start, the only place for `context`.

        Raises ValueError for a token id that is no uint32.
        """
        if parent is not None:
            previous = parent.to_bytes(KEY_BYTES, "little")
        elif context:
            previous = blake2b(
                context, digest_size=KEY_BYTES, key=self._salt, person=_CONTEXT_PERSON
            ).digest()
        else:
            previous = b""
        pages = len(token_ids) // self.page_size
        packed = _pack(token_ids[: pages * self.page_size])
        page_bytes = self.page_size * _TOKEN_BYTES
        digests = bytearray()
        fresh = self._base.copy  # a copy skips the set-up of the key: a third of the time
        for start in range(0, len(packed), page_bytes):
            digest = fresh()
            digest.update(previous + packed[start : start + page_bytes])
            previous = digest.digest()
            digests += previous
        return list(struct.unpack(f"<{pages}Q", digests))


def derive_salt(swarm_key: bytes | None) -> bytes:
    """What keys the page hashes of a swarm: nobody without its key can test guesses at prompts.

    An open swarm (None) has a salt of zeros.
    """
    if swarm_key is None:
        return bytes(SALT_BYTES)
    return blake2b(swarm_key, digest_size=SALT_BYTES, person=_SALT_PERSON).digest()


def _pack(token_ids: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error:
        raise ValueError("a token id is not a whole number from 0 to 4294967295") from None
