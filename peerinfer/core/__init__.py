"""What a node knows and how it decides. Pure: no clock, no I/O, no randomness, no trio."""
