"""What serving a request costs at a node, in seconds until its first token.

    cost = round trip + transfer + wait + uncached tokens / prefill rate

Round trips and rates are measured; the priors of the config stand in until they are. The wait has two
parts. Prompts are prefilled one after the other, so every queued token comes first. And where all slots
are taken, some answers must end first. A slot's time depends on how long answers are, which nobody knows
beforehand, so this part is only as good as `ANSWER_TOKENS`.
"""

from __future__ import annotations

from peerinfer.config import RoutingConfig
from peerinfer.core.types import Load

ANSWER_TOKENS = 32  # guess
"""The length of an answer that a slot is waited for. Higher: full nodes are avoided, and hits missed."""
PROMPT_BYTES_PER_TOKEN = 4.0  # English text
TRANSFER_BYTES_PER_S = 24e6  # measured: a libp2p stream at a round trip of 200 ms; more on loopback


def transfer_s(prompt_tokens: int) -> float:
    """The time that a forwarded prompt's bytes take beyond the round trip."""
    return prompt_tokens * PROMPT_BYTES_PER_TOKEN / TRANSFER_BYTES_PER_S


def slot_wait_s(load: Load, config: RoutingConfig) -> float:
    """How long until a slot is free for a request that arrives now; 0 while there is a free one."""
    waiting = load.queued + 1 if load.queued else load.running + 1 - load.slots
    if waiting <= 0:
        return 0.0
    decode_tokens_per_s = load.decode_tokens_per_s or config.prior_decode_tokens_per_s
    return waiting / load.slots * ANSWER_TOKENS / decode_tokens_per_s


def wait_s(load: Load, config: RoutingConfig) -> float:
    """How long a request that arrives now waits before its own prefill begins."""
    prefill_tokens_per_s = load.prefill_tokens_per_s or config.prior_prefill_tokens_per_s
    return slot_wait_s(load, config) + load.queued_prefill_tokens / prefill_tokens_per_s
