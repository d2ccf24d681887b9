"""Makes an `SGLangEngine` with its tokeniser: for a server of the node's own, or for one that is attached.

What two nodes must have alike comes from the model's files, before a server runs. For an attached server they
are looked for where it says its model is, if that is this machine or the hub; else `--model DIRECTORY` names
a copy. Without any, the server's own word has to do, and only nodes like this one share prefixes with it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import trio

from peerinfer.config import EngineConfig
from peerinfer.core.types import EngineInfo
from peerinfer.engine.attached_server import AttachedServer
from peerinfer.engine.hf_model import HfModel, fetch_description, find_directory, read_model
from peerinfer.engine.hf_tokenizer import HfTokenizer
from peerinfer.engine.kv_endpoints import KvEndpoints
from peerinfer.engine.openai_upstream import OpenAIUpstream, open_client
from peerinfer.engine.server_facts import ServerFacts, precision, read_facts
from peerinfer.engine.server_tokenizer import ServerTokenizer
from peerinfer.engine.sglang import SGLangEngine, described
from peerinfer.engine.sglang_flags import flag_value, served_name
from peerinfer.engine.sglang_process import ManagedServer
from peerinfer.node.ports import EngineError

log = logging.getLogger("peerinfer.engine")

Result = TypeVar("Result")

TREE_PAGES_MAX = 262_144  # guess: the tree of a server that does not say how much it can keep
ASK_AGAIN_S = 1.0
FETCH_TIMEOUT_S = 60.0
"""How long the hub may take to give a model's description; it is some megabytes."""
KEY_VARIABLE = "PEERINFER_ENGINE_KEY"
"""An attached server's API key; a command line would show it to everybody on the machine."""


async def build_managed(config: EngineConfig, *, data_dir: Path) -> tuple[SGLangEngine, ServerTokenizer]:
    """An SGLang of the node's own; it is started when the engine runs. Raises `EngineError`."""
    server = ManagedServer(config, model=config.model, log_path=data_dir / "sglang.log")
    if find_directory(config.model) is None:
        log.info("engine=sglang fetching the description of %s", config.model)
    directory = await _in_thread(fetch_description, config.model)
    named = flag_value(config.args, "--chat-template") or ""
    model = await _in_thread(_read, directory, named)
    said = precision(*(flag_value(config.args, f"--{name}") for name in _PRECISION))
    info = EngineInfo(
        kind="sglang",
        model=served_name(config.args, config.model),
        page_size=config.page_size,
        capacity_pages=TREE_PAGES_MAX,
        slots=config.slots,
        context_tokens_max=config.context_tokens,
        fingerprint_fields=_fields(model, config, said, named),
    )
    tokenizer = ServerTokenizer(await _in_thread(_tokenizer, model))
    return SGLangEngine(info, server, tokenizer, vocabulary=model.vocabulary), tokenizer


async def build_attached(config: EngineConfig) -> tuple[SGLangEngine, ServerTokenizer]:
    """A server that somebody else runs. Waits until it says what it is, unless its model's files are named.

    Raises:
        EngineError: the files are none, or the server's cache is not made of blocks that make pages.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    named = find_directory(config.model) if config.model else None
    if config.model and named is None:
        raise EngineError(f"--model: there is no directory {config.model}, and the hub's cache has none")
    facts = await _ask(config, key, once=named is not None)
    info = EngineInfo(
        kind="sglang" if facts is None or facts.is_sglang else "openai",
        model=facts.model if facts else named.name if named else "",
        page_size=config.page_size,
        capacity_pages=TREE_PAGES_MAX,
        slots=config.slots,
        context_tokens_max=config.context_tokens,
    )
    if facts is not None:
        info = described(info, facts)
    template = facts.chat_template if facts else ""
    said = facts.precision if facts else ""
    model = await _find_model(named, facts, template)
    local = None
    if model is not None:
        local = await _in_thread(_tokenizer, model)
        fields = _fields(model, config, said, template)
    else:
        assert facts is not None
        fields = _served_fields(facts, config)
    engine = SGLangEngine(
        replace(info, fingerprint_fields=fields),
        AttachedServer(config, key=key),
        tokenizer := ServerTokenizer(local),
        vocabulary=model.vocabulary if model else None,
        serves=facts.model_path if facts else "",
        events=_events(config),
        key=key,
    )
    return engine, tokenizer


_PRECISION = ("dtype", "quantization", "kv-cache-dtype")


async def _ask(config: EngineConfig, key: str, *, once: bool) -> ServerFacts | None:
    """What the server is; asked until it answers, with a line for each change of what is wrong."""
    said = ""
    async with open_client(key=key) as client:
        while True:
            try:
                return await read_facts(OpenAIUpstream(client, config.url))
            except EngineError as error:
                if once:
                    return None
                if str(error) != said:
                    said = str(error)
                    log.info("engine=attached waiting for %s: %s", config.url, said)
            await trio.sleep(ASK_AGAIN_S)


async def _find_model(named: Path | None, facts: ServerFacts | None, template: str) -> HfModel | None:
    """The model's files, as they were named or where the server says; None if they are not to be had."""
    if named is not None:
        return await _in_thread(_read, named, template)
    assert facts is not None
    try:
        with trio.fail_after(FETCH_TIMEOUT_S):
            directory = await _in_thread(fetch_description, facts.model_path)
        return await _in_thread(_read, directory, template)
    except (EngineError, trio.TooSlowError) as error:
        log.warning(
            "engine=attached no files of %s here (%s): only nodes without them share prefixes with this one; "
            "--model DIRECTORY names a copy",
            facts.model_path,
            str(error) or "the hub is too slow",
        )
        return None


def _read(directory: Path, template: str) -> HfModel:
    """A model with the chat template that its server has; a built-in one is the server's to render."""
    model = read_model(directory)
    if not template:
        return model
    try:
        source: str | None = Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        source = None
    if source is not None and template.endswith(".jinja"):
        return replace(model, chat_template=source.strip("\n").replace("\\n", "\n"))  # as SGLang reads it
    return replace(model, chat_template=None)


def _tokenizer(model: HfModel) -> HfTokenizer | None:
    """The files' own tokeniser; None if there is none that can be used without a server."""
    if not model.tokenizer_file.exists():
        log.warning("tokens=server the model has no tokenizer.json")
        return None
    return HfTokenizer(model)


def _fields(model: HfModel, config: EngineConfig, said: str, template: str) -> dict[str, str]:
    fields = model.fingerprint_fields(page_size=config.page_size, precision=said)
    if template and model.chat_template is None:
        fields["chat_template"] = f"named {template}"
    return fields


def _served_fields(facts: ServerFacts, config: EngineConfig) -> dict[str, str]:
    """What the server's word alone can tell two nodes."""
    return {
        "tokenizer": f"served {facts.tokenizer_path}",
        "chat_template": f"served {facts.chat_template}",
        "config": f"served {facts.model_path}",
        "weights": f"served {facts.model_path} {facts.precision}".strip(),
        "page_size": str(config.page_size),
        "format": "1",
    }


def _events(config: EngineConfig) -> KvEndpoints | None:
    """Where the server publishes its cache events, if it was said and not asked."""
    if not config.events:
        return None
    return KvEndpoints(live=config.events, replay=config.events_replay or None)


async def _in_thread(work: Callable[..., Result], *args: object) -> Result:
    """Files and the hub block."""
    return await trio.to_thread.run_sync(work, *args, abandon_on_cancel=True)
