"""One measurement: a workload on a swarm of some configuration. Its key names its result on disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

from peerinfer.sim.experiments.calibration import PAPER, Calibration
from peerinfer.sim.experiments.code_digest import code_digest
from peerinfer.sim.workloads.chats import ChatsSpec
from peerinfer.sim.workloads.mmlu import MmluSpec
from peerinfer.sim.workloads.mooncake import MooncakeSpec
from peerinfer.sim.workloads.shared_prefix import SharedPrefixSpec

WorkloadSpec = MmluSpec | SharedPrefixSpec | ChatsSpec | MooncakeSpec
Mode = Literal["sim", "embedded", "sglang"]

FORMAT = 1
"""Of the records; results of another format are measured again."""
JITTER_SHARE = 0.25  # paper table 3: Δ_comm is 2 ± 0.5 ms
JITTER_S_MAX = 0.010  # guess: "a small random jitter" (paper §4) stays small at 1 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is measured. Two cells are the same measurement if they are equal."""

    workload: WorkloadSpec
    mode: Mode = "sim"
    policy: str = "longest-prefix"
    network_delay_s: float = 0.002
    """Δ_comm, one way, on average."""
    poll_interval_s: float = 0.5
    """Δ_poll."""
    pause_s: float = 0.0
    """Between an answer and the next request, where they come one at a time."""
    page_size: int = 16
    cache_tokens: int = 65_536
    """Of each node."""
    calibration: Calibration = PAPER

    @property
    def jitter_s(self) -> float:
        """The delay varies by so much in either direction."""
        return min(JITTER_SHARE * self.network_delay_s, JITTER_S_MAX)

    def seeded(self, seed: int) -> Cell:
        """The same with another order of requests, and other draws of everything that is random."""
        return replace(self, workload=replace(self.workload, seed=seed))

    def shortened(self, requests: int) -> Cell:
        """The same workload's first requests."""
        assert not isinstance(self.workload, ChatsSpec), "chats have no first requests"
        return replace(self, workload=replace(self.workload, requests=requests))

    def key(self, corpus: str) -> str:
        """The name of its result, given the digest of what it asks about."""
        kind = type(self.workload).__name__
        spec = json.dumps([FORMAT, code_digest(), kind, corpus, asdict(self)], sort_keys=True)
        return hashlib.blake2b(spec.encode(), digest_size=10).hexdigest()
