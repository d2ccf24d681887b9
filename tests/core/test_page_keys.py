"""Page keys: a chain in which each key names a whole prefix."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.core.page_keys import PageHasher, derive_salt

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=80)


def hasher(page_size: int = 4, swarm_key: bytes | None = None) -> PageHasher:
    return PageHasher(salt=derive_salt(swarm_key), page_size=page_size)


@given(TOKENS, st.integers(1, 20))
def test_keys_are_the_documented_chain(token_ids: list[int], page_size: int) -> None:
    """Goal: docs/protocol.md, to the byte. Method: the formula again, written as plainly as there."""
    previous, expected = b"", []
    for start in range(0, len(token_ids) - page_size + 1, page_size):
        packed = b"".join(token.to_bytes(4, "little") for token in token_ids[start : start + page_size])
        previous = blake2b(previous + packed, digest_size=8, key=bytes(32)).digest()
        expected.append(int.from_bytes(previous, "little"))
    assert hasher(page_size).keys(token_ids) == expected


@given(TOKENS, TOKENS)
def test_prompts_share_exactly_the_keys_of_their_common_pages(ours: list[int], theirs: list[int]) -> None:
    """Goal: equal keys if and only if equal prefixes, so that a match can be a binary search."""
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    equal = [a == b for a, b in zip(hasher().keys(ours), hasher().keys(theirs), strict=False)]
    assert equal == [page < common // 4 for page in range(len(equal))]


@given(TOKENS, st.integers(0, 20))
def test_extending_a_parent_continues_its_chain(token_ids: list[int], split: int) -> None:
    keys = hasher().keys(token_ids)
    split = min(split, len(keys))
    parent = keys[split - 1] if split else None
    assert hasher().extend(parent, token_ids[split * 4 :]) == keys[split:]


def test_only_whole_pages_have_keys() -> None:
    assert hasher().keys([1, 2, 3]) == []
    assert len(hasher().keys([1, 2, 3, 4, 5, 6, 7])) == 1


def test_tokens_may_come_as_any_sequence() -> None:
    assert hasher().keys(range(8)) == hasher().keys(tuple(range(8))) == hasher().keys(list(range(8)))


def test_another_context_gives_other_keys_from_the_first_page_on() -> None:
    """Goal: what a LoRA adapter computed is never taken for what the plain model did."""
    plain = hasher().keys(range(8))
    adapted = hasher().keys(range(8), context=b"lora:a")
    assert not set(plain) & set(adapted)
    assert hasher().extend(adapted[0], range(4, 8), context=b"ignored below a parent") == adapted[1:]
    assert hasher().keys(range(8), context=b"lora:b") != adapted


def test_another_swarm_key_gives_other_keys() -> None:
    """Goal: nobody outside a keyed swarm can test guesses at prompts against its snapshots."""
    assert derive_salt(None) == bytes(32)
    assert len(derive_salt(b"secret")) == 32
    for context in (b"", b"lora:a"):
        theirs = hasher(swarm_key=b"secret").keys(range(8), context=context)
        assert not set(theirs) & set(hasher().keys(range(8), context=context))


@pytest.mark.parametrize("token_ids", [[-1], [2**32], ["1"], [1.0]])
def test_a_token_id_that_is_no_uint32_is_a_value_error(token_ids: list[int]) -> None:
    """Goal: clients send token arrays; a wrong one must become their error, not ours."""
    with pytest.raises(ValueError, match="token id"):
        hasher(page_size=1).keys(token_ids)


def test_a_page_has_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="page_size"):
        hasher(page_size=0)
