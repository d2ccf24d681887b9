"""A client's body with some members changed: all else stays as it came, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.engine.json_members import with_members

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "model", "é", "", 'q"uote']) | st.text(), JSON, max_size=6)


@given(OBJECTS, OBJECTS, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_the_result_is_the_object_with_the_members_set(
    body: dict[str, object], members: dict[str, object], indent: int | None, ascii: bool
) -> None:
    """Method: any objects, spaced and escaped in different ways."""
    raw = json.dumps(body, indent=indent, ensure_ascii=ascii).encode(errors="surrogatepass")
    try:
        raw.decode()
        json.dumps(members, ensure_ascii=False).encode()
    except UnicodeError:
        return
    assert json.loads(with_members(raw, members)) == body | members


def test_what_is_not_set_keeps_its_bytes() -> None:
    """Digits, escapes, spaces, the order of a schema and a member that comes twice."""
    kept = [
        rb'"response_format" : {"b":1.0,  "a":1e2, "z":"\u00e9\/"}',
        b'"big":12345678901234567890123',
        b'"twice":1',
        b'"twice":2.50',
        '"ü":"\U0001f98a"'.encode(),
    ]
    raw = b'\n{ "model" : "x",' + b" ,\r\n".join(kept) + b', "stream":false, "model":"again" } '
    assert with_members(raw, {"model": "served", "stream": True}) == (
        b"{" + b",".join(kept) + b',"model":"served","stream":true}'
    )


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"a"}', b'{"a":1,}', b'{"a":1', b"{1:2}", b'{"a":\xff}'])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|Expecting|decode|Unterminated"):
        with_members(raw, {"model": "m"})


def test_an_empty_object_takes_members() -> None:
    assert with_members(b" { } ", {"a": [1]}) == b'{"a":[1]}'
