"""An invite says what was put into it, or that it is damaged."""

from __future__ import annotations

import base58
import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.core.invite import (
    INVITE_CHARS_MAX,
    Invite,
    InviteError,
    _checksum,
    decode_invite,
    encode_invite,
    is_invite,
)
from peerinfer.core.swarm_key import SwarmKey

ADDR = "/ip4/192.0.2.7/tcp/4001/p2p/12D3KooWSj6jQEeeZAgdKb12WPQjvGMM5mWZWLPPUeM6dBuPkjCA"
KEY = SwarmKey(bytes(range(32)))
TEXT = encode_invite(Invite((ADDR, ADDR.replace(".7", ".8")), KEY))
LABELS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=256)


def sealed(payload: bytes, prefix: str = "pinv1") -> str:
    """Any payload with a good checksum."""
    return prefix + base58.b58encode(payload + _checksum(payload)).decode()


@given(
    st.lists(LABELS, min_size=1, max_size=8),
    st.none() | st.binary(min_size=32, max_size=32).map(SwarmKey),
)
def test_an_invite_is_read_as_it_was_written(addrs: list[str], key: SwarmKey | None) -> None:
    invite = Invite(tuple(addrs), key)
    text = encode_invite(invite)
    assert is_invite(text)
    assert text.isalnum(), "nothing in it ends a word"
    assert len(text) <= INVITE_CHARS_MAX
    assert decode_invite(text) == invite


def test_a_usual_one_fits_into_a_line_of_a_chat() -> None:
    assert len(TEXT) < 320


@given(
    st.integers(0, len(TEXT) - 6),
    st.sampled_from("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz0OIl -"),
)
def test_one_character_that_differs_is_noticed(place: int, character: str) -> None:
    at = place + 5
    damaged = TEXT[:at] + character + TEXT[at + 1 :]
    if damaged != TEXT:
        with pytest.raises(InviteError, match="damaged: copy it whole"):
            decode_invite(damaged)


@pytest.mark.parametrize("length", range(5, len(TEXT)))
def test_one_that_was_cut_is_noticed(length: int) -> None:
    with pytest.raises(InviteError, match="damaged"):
        decode_invite(TEXT[:length])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pinv2" + TEXT[5:], "this version"),
        ("pinv", "this version"),
        (ADDR, "this version"),
        ("", "this version"),
        (TEXT * 20, "too long"),
        (sealed(b""), "none: truncated"),
        (sealed(cbor2.dumps([])), "none: payload"),
        (sealed(cbor2.dumps({"a": []})), "none: a: no address"),
        (sealed(cbor2.dumps({"a": [ADDR] * 9})), "none: a"),
        (sealed(cbor2.dumps({"a": ["x" * 257]})), "none: a"),
        (sealed(cbor2.dumps({"a": ["\x1b[2J"]})), "none: a"),
        (sealed(cbor2.dumps({"k": bytes(32)})), "none: a"),
        (sealed(cbor2.dumps({"a": [ADDR], "k": bytes(31)})), "none: k"),
    ],
)
def test_what_is_no_invite_is_an_error(text: str, reason: str) -> None:
    with pytest.raises(InviteError, match=reason):
        decode_invite(text)


def test_the_string_of_version_1_stays_as_it_is() -> None:
    """Goal: an invite that was handed out last year is still one."""
    written = (
        "pinv1rUGFYF4cpJF6D1VSdxNMVwZ3r79WzT9nc94AfeVHLLnuxugpcxNcyyceHLmGGfnj2hykiwZn7YoPWaa6uDkoE"
        "CDcw2v9a71UosZgZ11NyNpCn6e3TYWCU2EH9VATgw21FNqnnCAECEa2xLrH92WqgqSp9jEx5i56VpebrSQ7cMSL"
    )
    assert decode_invite(written) == Invite((ADDR,), KEY)
    assert encode_invite(Invite((ADDR,), KEY)) == written
