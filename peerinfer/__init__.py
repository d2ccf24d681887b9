"""peerinfer: a peer-to-peer overlay of LLM serving nodes."""

__version__ = "0.1.0"
