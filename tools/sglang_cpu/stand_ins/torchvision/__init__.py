"""A stand-in for torchvision: SGLang imports its names for image inputs, and serves texts without it."""

__version__ = "0.0.0"
