"""One node: the trio shell around the core. It knows ports, not adapters."""
