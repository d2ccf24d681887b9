"""What is known of every stream: how much to read at once, and what it raises at the end."""

from __future__ import annotations

import trio
from libp2p.exceptions import BaseLibp2pError

READ_BYTES = 64 * 1024
"""One yamux frame's worth."""

STREAM_ERRORS = (BaseLibp2pError, OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What reading, writing or opening a stream raises when its connection, or the other side, gives up."""
