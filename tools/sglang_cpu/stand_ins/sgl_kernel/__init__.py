"""A stand-in for `sglang-kernel`, whose CPU build needs instructions (AMX) that few machines have.

SGLang's path in plain torch takes one operation from it, which is written out here. Any other name exists,
since modules import them, and says what it is when it is called.
"""

from collections.abc import Callable
from typing import NoReturn

import torch

__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    *_: object,
    **__: object,
) -> None:
    """Note in `req_to_token` where the tokens from start to end of each request lie in the KV cache."""
    taken = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for request, start, end in rows:
        places = out_cache_loc[taken : taken + end - start]
        req_to_token[request, start:end] = places.to(req_to_token.dtype)
        taken += end - start


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{name} needs a GPU or a CPU with AMX")

    return missing
