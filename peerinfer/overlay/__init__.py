"""The libp2p overlay; the only package that imports libp2p."""
