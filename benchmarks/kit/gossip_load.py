"""What the nodes of the gossip benchmark are set to, and the prompts that keep them busy."""

from __future__ import annotations

ASKED_PER_S = 5.0
PROMPT_CHARS = 400
CONFIG = """
[engine]
kind = "simulated"
cache_tokens = 262144
slots = 8
simulated_prefill_tokens_per_s = 1000000.0
simulated_decode_tokens_per_s = 10000.0
simulated_overhead_s = 0.001

[anti_entropy]
messages_per_s_max = {messages_per_s}
"""


def question(node: int, turn: int) -> dict[str, object]:
    """The body of a chat that no other node and no other turn has."""
    text = f"{node}/{turn} " * (PROMPT_CHARS // 8)
    return {"model": "simulated", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
