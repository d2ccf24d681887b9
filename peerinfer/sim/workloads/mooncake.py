"""Mooncake's public traces (FAST'25): when requests came, how long they were, and which blocks they shared.

The traces name each block of 512 tokens by a number; equal numbers are equal prefixes. The tokens of a block
are drawn from its number, and a prompt's last block is cut to the prompt's length. Open loop: requests
come when they came, `speed` times as fast, whether or not those before were answered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from peerinfer.sim.workloads.draw import draw_tokens
from peerinfer.sim.workloads.entries import Entry, entries
from peerinfer.sim.workloads.workload import Arrival, Tokens, Workload

BLOCK_TOKENS = 512
Trace = Literal["conversation", "synthetic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeSpec:
    """Which trace, and how much of it."""

    nodes: int = 4
    seed: int = 0
    trace: Trace = "conversation"
    speed: float = 1.0
    """How many times as fast as they came."""
    requests: int | None = None
    """The first so many; None: all."""
    prompt_tokens_max: int = 32_000
    """Longer prompts are cut: an engine refuses what exceeds its context."""
    output_tokens_max: int = 256
    entry: Entry = "round-robin"

    def build(self, data: Path) -> Workload:
        """The workload from a directory with `mooncake/*.jsonl`. Raises `ValueError` if it is not there."""
        file = data / "mooncake" / f"{self.trace}.jsonl"
        try:
            lines = file.read_bytes().splitlines()[: self.requests]
        except OSError as error:
            raise ValueError(f"{file}: {error}") from None

        def arrivals() -> Iterator[Arrival]:
            turns = entries(self.entry, nodes=self.nodes, seed=self.seed)
            for line, entry in zip(lines, turns, strict=False):
                request = json.loads(line)
                length = min(request["input_length"], self.prompt_tokens_max)
                yield Arrival(
                    entry=entry,
                    topic=0,
                    tokens=_prompt(request["hash_ids"], length),
                    max_tokens=max(1, min(request["output_length"], self.output_tokens_max)),
                    at_s=request["timestamp"] / 1000 / self.speed,
                )

        digest = hashlib.blake2b(b"\n".join(lines), digest_size=8).hexdigest()
        return Workload(topics=(self.trace,), count=len(lines), digest=digest, arrivals=arrivals)


def _prompt(blocks: list[int], length: int) -> Tokens:
    tokens: list[int] = []
    for block in blocks[: -(-length // BLOCK_TOKENS)]:
        tokens += _block(block)
    return tuple(tokens[:length])


@lru_cache(maxsize=4096)
def _block(number: int) -> Tokens:
    return draw_tokens(f"mooncake/{number}", BLOCK_TOKENS)
