"""A model's directory without a model: a vocabulary of words, a word a token, and a chat template.

The workloads of `peerinfer.sim` are token ids. Central routers see texts, engines and nodes see tokens; with
a word of four letters for each token all of them see the same prompt, and a prompt's length is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

TOKENS = 49_152
"""As many as the default model's vocabulary has."""
ROLES = ("system", "user", "assistant")
UNKNOWN = "[unknown]"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def word(token: int) -> str:
    """The spelling of a token: four letters."""
    spelled = ""
    for _ in range(4):
        token, letter = divmod(token, 26)
        spelled += _LETTERS[letter]
    return spelled


def spell(tokens: Iterable[int]) -> str:
    """The text that the vocabulary reads as these tokens."""
    return " ".join([WORDS[token] for token in tokens])


def render(body: Mapping[str, object]) -> str | None:
    """A body's prompt as the template renders it; None if it is no plain chat or text."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return prompt
    messages = body.get("messages")
    if not isinstance(messages, list) or body.get("tools"):
        return None
    pieces = []
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            return None
        pieces.append(f"{message['role']} {message['content']} ")
    return "".join(pieces) + ("" if body.get("continue_final_message") else "assistant")


def make_model(directory: Path) -> Path:
    """Write the directory as Hugging Face lays one out."""
    directory.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(directory / "tokenizer.json"))
    _write(directory / "tokenizer_config.json", {"chat_template": TEMPLATE})
    shape = {"model_type": "llama", "torch_dtype": "bfloat16", "max_position_embeddings": 32_768}
    _write(directory / "config.json", {**shape, "vocab_size": TOKENS + len(ROLES) + 1})
    (directory / "model.safetensors").write_bytes(b"no weights")
    return directory


def make_tokenizer() -> Tokenizer:
    """Words to tokens."""
    names = [*WORDS, *ROLES, UNKNOWN]
    tokenizer = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=UNKNOWN)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _write(file: Path, value: object) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")


WORDS = tuple(word(token) for token in range(TOKENS))
