"""The code that results depend on: results of other code are measured again."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import peerinfer

MEASURED = ("config.py", "core", "node", "engine", "overlay", "sim")
"""Below the package. How results are shown, in `sim/experiments`, is no part of it."""


@functools.cache
def code_digest() -> str:
    """Of all source files that a measurement runs."""
    root = Path(peerinfer.__file__).parent
    files = [
        file for name in MEASURED for file in (root / name, *(root / name).rglob("*.py")) if file.is_file()
    ]
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(files):
        if root / "sim" / "experiments" not in file.parents:
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()
