"""What a person is told of a connection that did not come about."""

from __future__ import annotations

import logging

import pytest

from peerinfer.overlay.reasons import root_of
from tests.contract.overlay_worlds import LibP2PWorld, until
from tests.contract.test_overlay_contract import SOON_S

SOMEBODY = "12D3KooWSj6jQEeeZAgdKb12WPQjvGMM5mWZWLPPUeM6dBuPkjCA"


async def test_another_peer_at_an_address_and_the_own_address_are_told_in_words(
    world: LibP2PWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Method: b joins a under a wrong id, then, started again, itself. The log and `standing` say what to do,
    the log of the side that is dialled too."""
    caplog.set_level(logging.INFO, "peerinfer.overlay")
    a = await world.start()
    address = a.address.partition("/p2p/")[0]
    wrong = f"{address}/p2p/{SOMEBODY}"
    b = await world.start(join=[wrong])
    await until(lambda: f"peer {a.id} is there" in b.overlay.standing().unreached[wrong], within_s=SOON_S)
    assert f"peer={SOMEBODY} state=unreachable" in caplog.text
    assert "join the address that it prints now" in caplog.text
    await until(lambda: "it may have expected another peer" in caplog.text, within_s=SOON_S)
    assert not a.overlay.standing().unreached
    own = b.address
    await world.stop(b)
    again = await world.restart(b, join=[own, a.address])
    assert again.overlay.standing().unreached[own] == "that is this node itself"
    assert f"{own} is not joined through: that is this node itself" in caplog.text


def test_an_unknown_reason_is_passed_on_as_it_is() -> None:
    assert root_of(RuntimeError("out of biscuits")) == "out of biscuits"
    nested = ExceptionGroup("several", [OSError(111, "Connection refused")])
    assert root_of(nested).startswith("nobody listens there")
