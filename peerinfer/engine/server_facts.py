"""What a running server says about itself: SGLang in `/server_info`, others as far as `/v1/models` goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from peerinfer.engine.kv_endpoints import KvEndpoints, read_kv_endpoints
from peerinfer.engine.openai_upstream import OpenAIUpstream, StatusError
from peerinfer.node.ports import EngineError

DEFAULT_SLOTS = 8  # guess: of a server that does not say how many requests it runs at a time
DEFAULT_CONTEXT_TOKENS = 32768  # guess


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """One server, as it runs."""

    is_sglang: bool
    model: str
    """The name under which it serves its model."""
    model_path: str
    """What it loaded: a directory on its own machine, or an id on the hub."""
    tokenizer_path: str
    chat_template: str
    """A template's file or name that replaces the model's own; empty: its own."""
    slots: int
    context_tokens: int
    precision: str = ""
    """What it makes of the weights' types, where that is not the model's own."""
    block_size: int | None = None
    """Tokens per block of its cache; None where it does not say."""
    capacity_tokens: int | None = None
    """Tokens that its cache has room for; None where it does not say."""
    reuses_prefixes: bool = True
    reports_cached_tokens: bool = False
    parses_chats: bool = False
    """It makes more of a chat's answer than its text, by a parser for reasoning."""
    events: KvEndpoints | None = None
    """Where it publishes what its cache does."""


async def read_facts(upstream: OpenAIUpstream) -> ServerFacts:
    """Ask the server. Raises `EngineError`."""
    try:
        info = await upstream.get("/server_info")
    except StatusError as error:
        if error.status not in (404, 405):
            raise
        return await _other(upstream)
    if not isinstance(info, Mapping) or not isinstance(info.get("model_path"), str):
        return await _other(upstream)
    return _sglang(info, host=urlsplit(upstream.url).hostname or "127.0.0.1")


def precision(dtype: object, quantization: object, kv_cache_dtype: object) -> str:
    """What is computed otherwise than the model's files say; empty if nothing is."""
    said = [value for value in (dtype, quantization) if isinstance(value, str) and value != "auto"]
    if isinstance(kv_cache_dtype, str) and kv_cache_dtype != "auto":
        said.append(f"kv={kv_cache_dtype}")
    return " ".join(word.removeprefix("torch.") for word in said)


def _sglang(info: Mapping[str, object], *, host: str) -> ServerFacts:
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    model_path = str(info["model_path"])
    page = _count(info.get("page_size"))
    return ServerFacts(
        is_sglang=True,
        model=_text(info.get("served_model_name")) or model_path,
        model_path=model_path,
        tokenizer_path=_text(info.get("tokenizer_path")) or model_path,
        chat_template=_text(info.get("chat_template")),
        slots=_count(state.get("effective_max_running_requests_per_dp"))
        or _count(info.get("max_running_requests"))
        or DEFAULT_SLOTS,
        context_tokens=_count(info.get("context_length"))
        or _count(info.get("max_req_input_len"))
        or DEFAULT_CONTEXT_TOKENS,
        precision=precision(info.get("dtype"), info.get("quantization"), info.get("kv_cache_dtype")),
        block_size=page,
        capacity_tokens=_count(info.get("max_total_num_tokens")),
        reuses_prefixes=info.get("disable_radix_cache") is not True,
        reports_cached_tokens=info.get("enable_cache_report") is True,
        parses_chats=info.get("reasoning_parser") is not None,
        events=read_kv_endpoints(info, host=host),
    )


async def _other(upstream: OpenAIUpstream) -> ServerFacts:
    answer = await upstream.get("/v1/models")
    listed = answer.get("data") if isinstance(answer, Mapping) else None
    models = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    named = next((entry for entry in models if isinstance(entry.get("id"), str)), None)
    if named is None:
        raise EngineError(f"{upstream.url} serves no model: /v1/models names none")
    root = _text(named.get("root")) or str(named["id"])
    return ServerFacts(
        is_sglang=False,
        model=str(named["id"]),
        model_path=root,
        tokenizer_path=root,
        chat_template="",
        slots=DEFAULT_SLOTS,
        context_tokens=_count(named.get("max_model_len")) or DEFAULT_CONTEXT_TOKENS,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
