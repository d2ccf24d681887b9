"""Makes the engine that the config asks for (engine/decide.py settles what that is)."""

from __future__ import annotations

from pathlib import Path

import trio

from peerinfer.config import EngineConfig
from peerinfer.node.ports import Engine, EngineError, Tokenizer


async def build_engine(config: EngineConfig, *, data_dir: Path) -> tuple[Engine, Tokenizer | None]:
    """The engine and its tokeniser; nothing is loaded yet, though an attached server is asked what it is.

    Imports are local: a node loads the libraries of the engine it has, and no others. Raises `EngineError`.
    """
    if config.kind in ("auto", "sglang"):
        from peerinfer.engine.decide import decide_engine

        config = (await trio.to_thread.run_sync(decide_engine, config)).config
    match config.kind:
        case "simulated":
            return _simulated(config)
        case "sglang":
            from peerinfer.engine.sglang_build import build_attached, build_managed

            if config.url:
                return await build_attached(config)
            return await build_managed(config, data_dir=data_dir)
        case "embedded":
            return _embedded(config)
        case other:
            raise EngineError(f"there is no engine {other!r}; choose auto, sglang, embedded or simulated")


def _simulated(config: EngineConfig) -> tuple[Engine, Tokenizer]:
    from peerinfer.engine.simulated import SimulatedEngine

    simulated = SimulatedEngine(
        model=config.model or "simulated",
        page_size=config.page_size,
        capacity_pages=config.cache_tokens // config.page_size,
        slots=config.slots,
        context_tokens=config.context_tokens,
        prefill_tokens_per_s=config.simulated_prefill_tokens_per_s,
        decode_tokens_per_s=config.simulated_decode_tokens_per_s,
        overhead_s=config.simulated_overhead_s,
    )
    return simulated, simulated.tokenizer


def _embedded(config: EngineConfig) -> tuple[Engine, Tokenizer]:
    from peerinfer.engine.embedded import EmbeddedEngine
    from peerinfer.engine.model_store import default_model_path

    embedded = EmbeddedEngine(
        model=Path(config.model) if config.model else default_model_path(),
        page_size=config.page_size,
        capacity_tokens=config.cache_tokens,
        slots=config.slots,
        context_tokens=config.context_tokens,
    )
    return embedded, embedded.tokenizer
