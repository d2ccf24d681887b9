"""Errors about bytes that came from somebody else."""


class WireError(ValueError):
    """Bytes from a peer are not what the protocol says; the message names the field. Count it, drop them."""


class WireVersionError(WireError):
    """The bytes are of a format version this node does not speak."""
