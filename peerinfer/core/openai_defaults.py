"""Members of an OpenAI request that ask for nothing: inert ones, and others at the value that does nothing.

Who may leave a member out must know that it does nothing: an engine of ours that would have to refuse it
(engine/openai_body.py), and whoever continues a broken answer elsewhere (core/continuation.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for /v1/completions, and every engine's."""

INERT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
    }
)
"""Members that change nothing in an answer."""

NO_OP: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "chat_template_kwargs": ({},),
}
"""Members at the values that ask for nothing."""


def is_one_of(value: object, others: Iterable[object]) -> bool:
    """Equality as JSON has it: `0` is not `false`."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in others)
