"""Whether this machine has a GPU that SGLang can use, found without loading a library that takes seconds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def find_gpu(environment: Mapping[str, str] = os.environ, *, root: Path = Path("/")) -> str | None:
    """What kind of GPU there is, in a word; None where there is none or the environment hides it."""
    if any(environment.get(name) in ("", "-1") for name in _HIDING):
        return None
    if any(root.glob("dev/nvidia[0-9]*")) or any(root.glob("proc/driver/nvidia/gpus/*")):
        return "NVIDIA"
    if (root / "dev/kfd").exists() and any(root.glob("dev/dri/renderD*")):
        return "AMD"
    return None
