"""Prompts to tokens by a model's own files, exactly as SGLang does it: fast, and before SGLang is there.

`tokenizers` is what SGLang itself tokenises with; the template is rendered in our sandbox. Text is encoded
with the special tokens that the tokeniser adds, a rendered chat without, and the beginning of an answer that
is to be continued by itself behind it. What is not certain to come out alike is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import jinja2
import trio
from tokenizers import Tokenizer

from peerinfer.core.types import Endpoint, RequestError
from peerinfer.engine.chat_template import ChatTemplate
from peerinfer.engine.hf_model import HfModel
from peerinfer.engine.sglang_chat import Kind, SglangChat, read_chat
from peerinfer.node.ports import EngineError

CHARS_ON_THE_SPOT = 8192  # measured: 1.3 ms; a longer text goes to a thread, where the GIL is released
KINDS: frozenset[Kind] = frozenset(get_args(Kind))


class HfTokenizer:
    """A model's tokeniser and chat template. Raises `EngineError` if there are none to be used."""

    def __init__(self, model: HfModel) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(model.tokenizer_file))
        except Exception as error:  # tokenizers raises plain Exceptions
            raise EngineError(f"{model.tokenizer_file} is no tokeniser: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._template: ChatTemplate | None = None
        if model.chat_template is not None:
            try:
                self._template = ChatTemplate(model.chat_template, **model.special_tokens)
            except jinja2.TemplateError as error:
                raise EngineError(f"the model's chat template is broken: {error}") from error
        self._bos = self._tokenizer.token_to_id(model.special_tokens.get("bos_token", ""))
        self.trusted = KINDS
        """The kinds of prompts that are told; a check against the server may take some away."""

    async def encode(self, endpoint: Endpoint, body: Mapping[str, object]) -> tuple[int, ...] | None:
        """The tokens of a body's prompt, in 0.6 ms for 540; None where only the server can tell."""
        if endpoint == "completions":
            prompt = body.get("prompt")
            if not isinstance(prompt, str) or "text" not in self.trusted:
                return None
            return await self._tokens(prompt, special=True)
        chat = read_chat(body)
        if chat is None or self._template is None or not chat.kinds <= self.trusted:
            return None
        text = self._render(self._template, chat)
        if text is None:
            return None
        tokens = await self._tokens(text, special=False)
        if tokens is None or not chat.prefix:
            return tokens
        prefix = await self._tokens(chat.prefix, special=True)
        if prefix is None:
            return None
        return tokens + (prefix[1:] if prefix and prefix[0] == self._bos else prefix)

    def _render(self, template: ChatTemplate, chat: SglangChat) -> str | None:
        try:
            return template.render_messages(chat.messages, tools=chat.tools)
        except RequestError:
            return None  # SGLang tries another shape then, or refuses the chat in its own words

    async def _tokens(self, text: str, *, special: bool) -> tuple[int, ...] | None:
        if len(text) <= CHARS_ON_THE_SPOT:
            return self._encode(text, special)
        return await trio.to_thread.run_sync(self._encode, text, special)

    def _encode(self, text: str, special: bool) -> tuple[int, ...] | None:
        try:
            text.encode()
        except UnicodeEncodeError:
            return None  # half of a surrogate pair
        # Without the places of the tokens in the text, which nobody needs here: a fifth faster.
        (encoded,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return tuple(encoded.ids)
