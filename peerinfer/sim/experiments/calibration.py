"""What a node's engine and everything around it cost, in the numbers that the simulation runs on.

`PAPER` is fitted to the paper's own tables; `peerinfer calibrate` measures an engine on this machine and
writes a file that `read_calibration` reads.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One kind of node."""

    name: str
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    overhead_s: float
    """The engine's, per request, besides prefill and decode."""
    processing_s: float
    """The node's, per request: HTTP, body, tokenising."""
    prefill_s_per_pair: float = 0.0
    """Attention: seconds for each pair of a computed token and one at or before it."""
    hop_s: float = 0.0
    """What forwarding costs besides the network's delay: two more ends of a stream."""
    slots: int = 2

    def __post_init__(self) -> None:
        assert self.prefill_tokens_per_s > 0
        assert self.decode_tokens_per_s > 0
        assert self.prefill_s_per_pair >= 0


PAPER = Calibration(
    name="paper",
    prefill_tokens_per_s=520.0,  # paper table 2: a line through its four (hit rate, latency) pairs
    decode_tokens_per_s=1000.0,  # guess: one token is within the line's constant
    overhead_s=0.080,  # paper table 2: that line's constant, 80 ms
    processing_s=1e-3,  # guess
)
"""A 0.5B model on a tenth of an H100 under SGLang, as far as the paper's tables tell.

With 540 tokens per prompt its four pairs lie near 80 ms + 2.6 ms per uncached token. That is far more than
such a GPU needs for the arithmetic: the paper's latencies are dominated by fixed costs. Our prompts
have a third more tokens, since our vocabulary is another, so the rate is a third higher.
"""


def read_calibration(file: Path) -> Calibration:
    """What `peerinfer calibrate` wrote. Raises `ValueError` for anything else."""
    try:
        values: dict[str, Any] = json.loads(file.read_text())["calibration"]
        return Calibration(**{each.name: values[each.name] for each in fields(Calibration)})
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise ValueError(f"{file} is no calibration ({error!r}); `peerinfer calibrate` writes one") from None


def calibration_json(calibration: Calibration, **more: object) -> str:
    """The file that `read_calibration` reads."""
    return json.dumps({"calibration": asdict(calibration), **more}, indent=2) + "\n"
