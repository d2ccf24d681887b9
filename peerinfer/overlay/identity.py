"""A node's identity: an Ed25519 key in the data directory that nobody else can read.

The peer id is derived from it, so it has to survive restarts: peers keep what they know of a node
under that name. The file appears complete or not at all, and whoever comes second takes the first's.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.serialization import deserialize_private_key

log = logging.getLogger("peerinfer.overlay")

KEY_FILE = "identity.key"
PRIVATE = 0o600


class IdentityError(Exception):
    """The key in the data directory cannot be used; the message says what to do about it."""


def load_or_create_identity(data_dir: Path) -> Any:
    """The key pair of the node that lives in `data_dir`, made on its first start.

    A key that others may read is made private again, with a warning.

    Raises:
        IdentityError: the file is no key, or it cannot be made private, read or written.
    """
    path = data_dir / KEY_FILE
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        _make_private(path)
        return _parse(path)
    except OSError as error:
        raise IdentityError(f"{path}: {error.strerror}") from error


def _create(path: Path) -> None:
    """Write a new key under a name of its own, then give it the real one unless somebody else did."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(create_new_key_pair().private_key.serialize())
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was first: its key is the identity
    finally:
        draft.unlink()


def _make_private(path: Path) -> None:
    if stat.S_IMODE(path.stat().st_mode) & ~PRIVATE:
        path.chmod(PRIVATE)
        if stat.S_IMODE(path.stat().st_mode) & ~PRIVATE:
            raise IdentityError(f"{path}: others can read this private key, and its mode cannot be changed")
        log.warning("%s: others could read this private key; its mode is 0600 now", path)


def _parse(path: Path) -> Any:
    try:
        private_key = deserialize_private_key(path.read_bytes())
        return KeyPair(private_key, private_key.get_public_key())
    except OSError:
        raise
    except Exception as error:  # the library raises whatever its parsers raise
        raise IdentityError(
            f"{path}: this is no libp2p private key ({type(error).__name__}); "
            "restore it, or remove it to start with a new peer id"
        ) from error
