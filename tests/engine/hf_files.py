"""A model's directory without a model: a tokeniser of bytes and few merges, a template, a config."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 256 + len(SPECIAL) + 2
TEMPLATE = Path(__file__).with_name("tools.jinja")


def make_model(
    directory: Path, *, adds_bos: bool = False, template: str | None = None, vocabulary: int = VOCABULARY
) -> Path:
    """The directory: tokens are the bytes' own letters, some special ones, and `he`, `lo`."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL, *letters, "he", "lo"]
    bpe = models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=[("h", "e"), ("l", "o")])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], 0)]
        )
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    source = TEMPLATE.read_text(encoding="utf-8") if template is None else template
    (directory / "chat_template.jinja").write_text(source, encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": SPECIAL[0], "eos_token": {"content": SPECIAL[2]}}), encoding="utf-8"
    )
    config = {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "torch_dtype": "bfloat16",
        "transformers_version": "5.0.0",
        "max_position_embeddings": 4096,
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (directory / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    return directory
