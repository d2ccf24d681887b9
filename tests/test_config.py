"""Numbers that make no sense end in one line where they are set, not in a node that fails later."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from peerinfer.bounds import BOUNDS
from peerinfer.config import MAY_BE_ZERO, RANGES, Config, HttpConfig
from peerinfer.overlay.topic import GOSSIP_BYTES_MAX

NUMBERS = [
    (section.name, each.name, each.default)
    for section in fields(Config)
    for each in fields(getattr(Config(), section.name))
    if type(each.default) in (int, float)
]


def test_every_bound_is_a_setting() -> None:
    settings = {f"{section}.{name}" for section, name, _ in NUMBERS}
    assert set(BOUNDS) <= settings


def test_the_document_lists_every_bound() -> None:
    """Name, default and reason, as docs/operations.md has them."""
    document = (Path(__file__).parents[1] / "docs" / "operations.md").read_text(encoding="utf-8")
    defaults = {f"{section}.{name}": default for section, name, default in NUMBERS}
    missing = [
        line
        for name, why in BOUNDS.items()
        if (line := f"| `{name}` | {defaults[name]:,} | {why} |") not in document
    ]
    assert not missing


@pytest.mark.parametrize(("section", "name", "default"), NUMBERS)
def test_every_number_is_checked(section: str, name: str, default: float) -> None:
    """Method: each number is set to what no number may be; the message names it."""
    for value in (-1, -math.inf, math.nan, *([] if type(default) is int else [math.inf])):
        with pytest.raises(ValueError, match=rf"^{name} is {value}; allowed is .+$"):
            replace(getattr(Config(), section), **{name: value})


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("anti_entropy", "messages_per_s_max", 0.0),
        ("anti_entropy", "snapshot_bytes_max", 10),
        ("anti_entropy", "snapshot_bytes_max", 256 * 1024 + 1),
        ("request", "attempts_max", 0),
        ("engine", "slots", 0),
        ("engine", "simulated_prefill_tokens_per_s", 0.0),
        ("engine", "cache_tokens", 15),
        ("overlay", "streams_per_peer_max", 257),
        ("http", "port", 65536),
    ],
)
def test_what_would_fail_later_is_refused(section: str, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is {value}; allowed is .+$"):
        replace(getattr(Config(), section), **{name: value})


def test_no_repr_of_a_config_shows_its_api_key() -> None:
    """Whoever logs a config must not log the key with it; nor does the error about one quote it."""
    assert "s3cret" not in repr(Config(http=HttpConfig(api_key="s3cret")))
    with pytest.raises(ValueError, match="api_key") as caught:
        HttpConfig(api_key="s3cret with spaces")
    assert "s3cret" not in str(caught.value)


def test_the_tables_of_limits_name_numbers_that_exist() -> None:
    assert RANGES.keys() | MAY_BE_ZERO <= {name for _, name, _ in NUMBERS}
    assert not RANGES.keys() & MAY_BE_ZERO


def test_the_longest_snapshot_fits_the_topic() -> None:
    """Beyond it a node would end as soon as its tree has grown."""
    assert RANGES["snapshot_bytes_max"][1] < GOSSIP_BYTES_MAX
