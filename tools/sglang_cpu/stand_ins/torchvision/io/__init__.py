"""Names that exist and do nothing; see the package."""

from torchvision.transforms import __getattr__

__all__ = ["__getattr__"]
