"""What serving a request costs at a node, in seconds until its first token.

    cost = round trip + transfer + wait + uncached tokens / prefill rate

Round trips and rates are measured; until a node's are, it counts as the others, and the priors of the config
stand in where nobody has measured. Prompts are prefilled one after the other, so every queued token comes
first. And where all slots are taken, answers must end first; while they are decoded, others are prefilled. So
the wait is the longer one of two: that for the prefill, and that for a slot, in which each of the slots has a
share of the prefills and an answer before ours. How long answers are nobody knows beforehand, so the second
is only as good as `ANSWER_TOKENS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median_low

from peerinfer.config import RoutingConfig
from peerinfer.core.types import Given, Load

ANSWER_TOKENS = 32  # guess
"""The length of an answer that a slot is waited for. Higher: full nodes are avoided, and hits missed."""
PROMPT_BYTES_PER_TOKEN = 4.0  # English text
TRANSFER_BYTES_PER_S = 24e6  # measured: a libp2p stream at a round trip of 200 ms; more on loopback


@dataclass(slots=True)
class Rates:
    """What stands in for rates that a node has not measured yet. One writer; all who reckon share it."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float

    @classmethod
    def prior(cls, config: RoutingConfig) -> Rates:
        """As long as nobody has measured any."""
        return cls(config.prior_prefill_tokens_per_s, config.prior_decode_tokens_per_s)

    def learn(self, own: Load, peers: Iterable[Load], config: RoutingConfig) -> bool:
        """This node's own rates if they are measured, else those that are typical of its peers.

        Returns whether the prefill rate is the first that was measured anywhere: waits that were reckoned
        with the prior may be far off then.
        """
        was_prior = self.prefill_tokens_per_s == config.prior_prefill_tokens_per_s
        if own.prefill_tokens_per_s and own.decode_tokens_per_s:
            self.prefill_tokens_per_s = own.prefill_tokens_per_s
            self.decode_tokens_per_s = own.decode_tokens_per_s
            return was_prior
        loads = list(peers)
        self.prefill_tokens_per_s = (
            own.prefill_tokens_per_s
            or typical(load.prefill_tokens_per_s for load in loads)
            or config.prior_prefill_tokens_per_s
        )
        self.decode_tokens_per_s = (
            own.decode_tokens_per_s
            or typical(load.decode_tokens_per_s for load in loads)
            or config.prior_decode_tokens_per_s
        )
        return was_prior and self.prefill_tokens_per_s != config.prior_prefill_tokens_per_s


def typical(rates: Iterable[float]) -> float:
    """The median of those that were measured; 0 if none was."""
    return median_low([rate for rate in rates if rate] or [0.0])


def transfer_s(prompt_tokens: int) -> float:
    """The time that a forwarded prompt's bytes take beyond the round trip."""
    return prompt_tokens * PROMPT_BYTES_PER_TOKEN / TRANSFER_BYTES_PER_S


def wait_s(load: Load, rates: Rates) -> float:
    """How long a request that arrives now waits before its own prefill begins."""
    prefill_s = load.queued_prefill_tokens / (load.prefill_tokens_per_s or rates.prefill_tokens_per_s)
    ahead = load.queued + 1 if load.queued else load.running + 1 - load.slots
    if ahead <= 0:
        return prefill_s
    answers_s = ahead * ANSWER_TOKENS / (load.decode_tokens_per_s or rates.decode_tokens_per_s)
    return max(prefill_s, (prefill_s + answers_s) / load.slots)


def with_given(load: Load, more: Given) -> Load:
    """The load when these requests have come, too."""
    if not more.requests and not more.tokens:
        return load
    free = 0 if load.queued else max(0, load.slots - load.running)
    return replace(
        load,
        running=load.running + min(free, more.requests),
        queued=load.queued + max(0, more.requests - free),
        queued_prefill_tokens=load.queued_prefill_tokens + more.tokens,
    )


def without_given(load: Load, less: Given) -> Load:
    """The load as it would be if the last ones of those that wait had not come."""
    return replace(
        load,
        queued=max(0, load.queued - less.requests),
        queued_prefill_tokens=max(0, load.queued_prefill_tokens - less.tokens),
    )
