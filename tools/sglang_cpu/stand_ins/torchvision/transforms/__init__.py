"""Names that exist and do nothing; see the package."""

from enum import Enum


class InterpolationMode(Enum):
    """Ways to resize an image, as torchvision names them."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> None:
        raise RuntimeError(f"torchvision is not installed here, and {name} is part of it")

    return missing
