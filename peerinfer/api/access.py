"""The API key: who may use a face that others can reach.

Everything but `/healthz` and `/readyz` is behind it, the node's own JSON and its pages as well. Programs
send it as OpenAI clients do, `Authorization: Bearer KEY`; a browser, which asks its user, as the password of
`Basic`. Keys are compared as hashes and in constant time, so that an answer's delay tells nothing about them,
and nothing that a client sent for one is repeated or logged.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable

from peerinfer.api.errors import BadRequestError, Headers

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""What a load balancer or an orchestrator asks without a key; they tell no more than that the node runs, and
whether a completion would be answered."""
CHALLENGE: Headers = [
    (b"www-authenticate", b'Bearer realm="peerinfer"'),
    (b"www-authenticate", b'Basic realm="peerinfer"'),
]
"""The second has a browser ask for the key."""


class KeyPolicy:
    """Which requests have the key; all of them where there is none."""

    def __init__(self, api_key: str) -> None:
        self._digest = _digest(api_key.encode()) if api_key else None

    def check(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Let a request pass.

        Raises:
            BadRequestError: status 401.
        """
        if self._digest is None or path in OPEN_PATHS:
            return
        given = next((value for name, value in headers if name == b"authorization"), None)
        if given is None:
            raise _refusal(
                "You didn't provide an API key. This node wants one, in the header "
                "'Authorization: Bearer YOUR_KEY'; `peerinfer` commands take --api-key-file FILE."
            )
        if not hmac.compare_digest(_digest(_key_in(given)), self._digest):
            raise _refusal("Incorrect API key provided.", code="invalid_api_key")


def _key_in(authorization: bytes) -> bytes:
    """What a header offers as key; nothing if it is neither Bearer nor Basic."""
    scheme, _, rest = authorization.strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return b""


def _digest(key: bytes) -> bytes:
    """Of equal length for keys of any length, which a comparison in constant time needs."""
    return hashlib.sha256(key).digest()


def _refusal(message: str, *, code: str | None = None) -> BadRequestError:
    return BadRequestError(message, reason="api_key", status=401, code=code)
