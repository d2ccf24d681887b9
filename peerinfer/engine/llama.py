"""llama.cpp through cyllama: a model, and slots that compute and hand out KV pages.

The rule that everything rests on: a page of KV cache has the same bits whether it was computed in a prefill,
written by single-token decoding, or loaded from a blob. It holds for chunks of up to 32 tokens, cut anywhere
(measured; 64 and more take other kernels and give other bits), so a cached answer is exactly the cold one.

In a slot's context sequence 1 is the request, whose cells always lie at 0..n, and sequence 0 is a scratch
through which pages come and go. llama.cpp aborts the whole process on a batch that is too large or a token
out of range, so both are asserted here. One thread per context: OpenMP's spinning collapses busy machines.
"""

from __future__ import annotations

import functools
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peerinfer.engine.openai_body import Options
from peerinfer.node.ports import EngineError

CHUNK_TOKENS = 32  # measured: the largest chunk that keeps a page's bits; 187 tokens/s, 171 at 16
_SCRATCH, _REQUEST = 0, 1
_SPM, _BPE = 1, 2
_SEEDS = 2**32 - 1  # the last uint32 means "draw one" to llama.cpp
_load_lock = threading.Lock()


def library() -> Any:
    """cyllama's binding, with llama.cpp quiet and its backends loaded: 0.1 s, the first time."""
    with _load_lock:
        return _library()


@functools.cache
def _library() -> Any:
    from cyllama.llama import llama_cpp

    llama_cpp.disable_logging()
    llama_cpp.llama_backend_init()
    llama_cpp.ggml_backend_load_all()
    return llama_cpp


class Model:
    """A loaded model: its vocabulary, and what slots are made of. Raises `EngineError` for a bad file."""

    def __init__(self, path: Path) -> None:
        llama = library()
        params = llama.LlamaModelParams()
        params.n_gpu_layers = 0
        params.use_extra_bufts = False  # measured: repacked Q4_K weights give other bits for other chunks
        try:
            self.handle = llama.LlamaModel(str(path), params)
        except (ValueError, RuntimeError, OSError) as error:
            raise EngineError(f"llama.cpp cannot load {path}: {error}") from error
        if self.handle.is_recurrent() or self.handle.is_hybrid():
            self.close()
            raise EngineError(f"{path}: a recurrent model has no KV pages to reuse")
        self._vocab = self.handle.get_vocab()
        self.vocabulary = int(self._vocab.n_vocab)
        self.longest_piece = max(len(self._vocab.get_text(token)) for token in range(self.vocabulary))
        """Characters of the longest token: a text has at least its length divided by this in tokens."""
        self._pieces: dict[int, bytes] = {}

    @property
    def bos_token(self) -> str:
        """The text of the token that begins a prompt; empty if the model has none."""
        return self._special(self._vocab.token_bos())

    @property
    def eos_token(self) -> str:
        """The text of the token that ends an answer."""
        return self._special(self._vocab.token_eos())

    def tokenize(self, text: str, *, add_special: bool) -> tuple[int, ...]:
        """The tokens of a text, in which special tokens may be spelled out; 1.1 ms for 540 tokens."""
        return tuple(self._vocab.tokenize(text, add_special, True))

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for, possibly a part of a character; none for control tokens."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token)
        return piece

    def ends(self, token: int) -> bool:
        """Whether the model ends its answer with this token."""
        return bool(self._vocab.is_eog(token))

    def close(self) -> None:
        """Free the weights; no slot may be left."""
        self.handle.close()

    def _special(self, token: int) -> str:
        return str(self._vocab.get_text(token)) if 0 <= token < self._vocab.n_vocab else ""

    def _piece(self, token: int) -> bytes:
        if self._vocab.is_control(token):
            return b""
        # cyllama's token_to_piece puts U+FFFD for parts of characters: the bytes come from the token's name.
        piece = token_bytes(str(self._vocab.get_text(token)), self._vocab.vocab_type)
        return str(self._vocab.token_to_piece(token, 0, False)).encode() if piece is None else piece


@dataclass(frozen=True, slots=True)
class Advance:
    """What one step of a slot brought."""

    pages: tuple[bytes, ...]
    """The pages that became whole, as blobs."""
    token: int | None
    """The token drawn from the last position, if one was asked for."""
    seconds: float
    """What the computation took, without saving pages and drawing."""


class Slot:
    """One running request's context. Its methods block for long, and only one may run at a time."""

    def __init__(self, model: Model, *, context_tokens: int, page_size: int) -> None:
        assert CHUNK_TOKENS % page_size == 0
        self._model = model
        self._context_tokens = context_tokens
        self._page_size = page_size
        self._broken = False
        self._open()

    def begin(self, options: Options) -> None:
        """Make ready for a request that draws its tokens like this. Raises `EngineError` out of memory."""
        llama = library()
        if self._broken:
            self.close()
            self._open()
        self._context.cancel = False
        self._sampler = llama.LlamaSampler(llama.LlamaSamplerChainParams())
        if options.temperature == 0:
            self._sampler.add_greedy()
            return
        seed = secrets.randbelow(_SEEDS) if options.seed is None else options.seed % _SEEDS
        self._sampler.add_temp(options.temperature)
        if options.top_p < 1:
            self._sampler.add_top_p(options.top_p, 1)
        self._sampler.add_dist(seed)

    def load(self, pages: Sequence[bytes]) -> None:
        """Start from these pages; 0.1 ms each. Raises `EngineError`, as `advance` does."""
        with self._failing():
            for at, blob in enumerate(pages):
                self._context.set_state_seq_data(blob, _SCRATCH)
                begin = at * self._page_size
                self._context.memory_seq_cp(_SCRATCH, _REQUEST, begin, begin + self._page_size)
                self._context.memory_seq_rm(_SCRATCH, -1, -1)

    def advance(self, tokens: Sequence[int], begin: int, *, draw: bool) -> Advance:
        """Compute tokens at the positions from `begin`, save pages that end among them, draw the next token.

        Raises:
            InterruptedError: `abort` was called.
            EngineError: llama.cpp failed; the next `begin` starts with a new context.
        """
        assert 0 < len(tokens) <= CHUNK_TOKENS
        assert begin + len(tokens) <= self._context_tokens
        assert all(0 <= token < self._model.vocabulary for token in tokens)
        self._batch.clear()
        for at, token in enumerate(tokens):
            self._batch.add(token, begin + at, [_REQUEST], draw and at == len(tokens) - 1)
        started = time.perf_counter()
        with self._failing():
            self._context.decode(self._batch)
            seconds = time.perf_counter() - started
            first, end = begin // self._page_size, (begin + len(tokens)) // self._page_size
            pages = tuple(self._save(page) for page in range(first, end))
            drawn = int(self._sampler.sample(self._context, -1)) if draw else None
        return Advance(pages, drawn, seconds)

    def abort(self) -> None:
        """Make an `advance` that runs in another thread stop within milliseconds, and any later one too."""
        self._context.cancel = True

    def clear(self) -> None:
        """Forget the request; ready for `begin`."""
        if not self._broken:
            self._context.memory_seq_rm(-1, -1, -1)

    def close(self) -> None:
        """Free the context."""
        self._context.close()

    def _open(self) -> None:
        llama = library()
        params = llama.LlamaContextParams()
        params.n_ctx = self._context_tokens
        params.n_batch = params.n_ubatch = CHUNK_TOKENS
        params.n_seq_max = 2
        params.kv_unified = True  # copying between sequences then copies no cells
        params.n_threads = params.n_threads_batch = 1
        try:
            self._context = llama.LlamaContext(self._model.handle, params)
            self._context.install_cancel_callback()
            self._batch = llama.LlamaBatch(n_tokens=CHUNK_TOKENS, embd=0, n_seq_max=1)
        except (ValueError, RuntimeError, MemoryError) as error:
            raise EngineError(f"llama.cpp cannot make a context: {error}") from error
        self._broken = False

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, RuntimeError) as error:  # no room, a bad batch or blob; anything fatal
            self._broken = True
            raise EngineError(f"llama.cpp failed: {error}") from error

    def _save(self, page: int) -> bytes:
        begin = page * self._page_size
        self._context.memory_seq_cp(_REQUEST, _SCRATCH, begin, begin + self._page_size)
        blob = bytes(self._context.get_state_seq_data(_SCRATCH))
        self._context.memory_seq_rm(_SCRATCH, -1, -1)
        return blob


def token_bytes(name: str, vocabulary_type: int) -> bytes | None:
    """The bytes that a token's name stands for; None for a type of vocabulary that is unknown here."""
    if vocabulary_type == _BPE:
        letters = _byte_of_letter()
        # A token that a user added is spelled out, in letters that the table need not have.
        return bytes(map(letters.__getitem__, name)) if letters.keys() >= set(name) else name.encode()
    if vocabulary_type == _SPM:
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return bytes([int(name[3:5], 16)])
        return name.replace("\u2581", " ").encode()
    return None


@functools.cache
def _byte_of_letter() -> dict[str, int]:
    """The letters under which byte-level BPE vocabularies write the 256 bytes (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + at): byte for at, byte in enumerate(others)}
