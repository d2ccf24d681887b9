"""A swarm's network in memory, on trio's time alone: no sockets, no threads, so that the clock may jump.

`SimNetwork.overlay` makes a node's overlay; what happens to the network between them (partition, heal,
crash, delay, jitter, loss) is the `Fabric`'s part.
"""

from __future__ import annotations

from collections.abc import Sequence

from peerinfer.config import OverlayConfig
from peerinfer.core.types import PeerId
from peerinfer.sim.fabric import Fabric
from peerinfer.sim.overlay import SimOverlay
from peerinfer.sim.shared_reading import SharedReading
from peerinfer.sim.weather import Conditions

__all__ = ["Conditions", "SimNetwork"]


class SimNetwork(Fabric):
    """A fabric, and the overlays on it; what one of them publishes is read once for all."""

    def __init__(
        self, *, seed: int = 0, conditions: Conditions | None = None, silence_s: float = 5.0
    ) -> None:
        super().__init__(seed=seed, conditions=conditions, silence_s=silence_s)
        self.reading = SharedReading()

    def overlay(
        self,
        peer_id: PeerId,
        *,
        join: Sequence[str] = (),
        topic: str | None = "peerinfer/1/simulated",
        config: OverlayConfig | None = None,
    ) -> SimOverlay:
        """A node's overlay; it is part of the network while it runs. After a crash, make a new one."""
        return SimOverlay(self, peer_id, join=join, topic=topic, config=config)
