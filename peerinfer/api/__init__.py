"""The OpenAI-compatible HTTP face and the node's own JSON."""
