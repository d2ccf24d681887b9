"""Push-back: how an overloaded node keeps its peers away for a while (paper §3.2).

The overloaded side says for how long, with every snapshot, until its queue is below half of what made it
speak up: without that hysteresis it would flap. The other side counts from receipt, so clocks need not
agree, and resumes a little earlier or later than told, so that its peers do not all come back at once.
Neither side needs an acknowledgement; a lost word is repeated in the next round.
"""

from __future__ import annotations

from hashlib import blake2b

from peerinfer.config import PushBackConfig, RoutingConfig
from peerinfer.core.cost_model import Rates, wait_s
from peerinfer.core.types import Load, PeerId


class PushBack:
    """The overloaded side: whether, and for how long, to ask peers to stay away."""

    def __init__(self, config: PushBackConfig, routing: RoutingConfig | None = None) -> None:
        self._config = config
        self._rates = Rates.prior(routing or RoutingConfig())
        self._pushing = False
        self.paused_until = 0.0
        """When peers may be back that heard the last update; in the past unless pushing back."""

    def update(self, load: Load, *, now: float) -> float:
        """`paused_for_s` to advertise now: the time in which this load drains, or 0 for "come"."""
        queue_max = self._config.queue_per_slot_max * load.slots
        if load.queued > queue_max:
            self._pushing = True
        elif load.queued < queue_max / 2:
            self._pushing = False
        drain_s = wait_s(load, self._rates) if self._pushing else 0.0
        paused_for_s = min(drain_s, self._config.pause_s_max)
        self.paused_until = now + paused_for_s
        return paused_for_s


def resume_at(
    paused_for_s: float, config: PushBackConfig, *, me: PeerId, peer: PeerId, seq: int, now: float
) -> float:
    """The other side: when to forward to `peer` again that asked for a pause in message `seq`.

    The jitter is a hash, since the core has no randomness: it differs between nodes and between messages,
    and a simulation can be repeated.
    """
    digest = blake2b(f"{me} {peer} {seq}".encode(), digest_size=8).digest()
    between_0_and_1 = int.from_bytes(digest, "little") / 2**64
    jitter = config.resume_jitter * (2.0 * between_0_and_1 - 1.0)
    return now + min(paused_for_s, config.pause_s_max) * (1.0 + jitter)
