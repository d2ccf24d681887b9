"""What the paper reports, to stand beside what we measure."""

from __future__ import annotations

from collections.abc import Mapping

DELAYS_S = (0.002, 0.2, 1.0)  # paper §5, Δ_comm
POLLS_S = (0.02, 0.1, 2.0, 300.0)  # paper table 3, Δ_poll beside 500 ms

ROUTED_LATENCY_S: Mapping[float, float] = {0.002: 0.310, 0.2: 0.785, 1.0: 2.271}  # paper table 1
UNROUTED_LATENCY_S = 0.323  # paper table 1
SKEWED_ROUTED_LATENCY_S = 0.206  # paper table 1
SKEWED_UNROUTED_LATENCY_S = 0.266  # paper table 1

HITS: Mapping[tuple[bool, bool], tuple[float, float]] = {
    (False, False): (0.473, 0.831),
    (False, True): (0.664, 0.837),
    (True, False): (0.674, 0.856),
    (True, True): (0.886, 0.914),
}
"""(skewed, routed) → expected and actual hit rate; paper table 2."""

UNROUTED_HOTTEST: Mapping[bool, float] = {False: 0.287, True: 0.347}
"""skewed → share; paper table 3."""
DELAY_HOTTEST: Mapping[float, float] = {0.002: 0.700, 0.2: 0.674, 1.0: 0.649}  # paper table 3
POLL_HOTTEST: Mapping[float, float] = {0.02: 0.748, 0.1: 0.757, 2.0: 0.669, 300.0: 0.422}  # paper table 3
SKEWED_HOTTEST = 0.881  # paper table 3


def ms(seconds: float) -> str:
    """A duration as the paper writes it."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"
