"""Prompts to tokens with the model's own vocabulary and chat template."""

from __future__ import annotations

from collections.abc import Mapping

import jinja2
import trio

from peerinfer.core.refusals import context_length_exceeded
from peerinfer.core.types import Endpoint, RequestError
from peerinfer.engine.chat_template import ChatTemplate
from peerinfer.engine.llama import Model
from peerinfer.engine.openai_body import ChatPrompt, TextPrompt, read_prompt
from peerinfer.node.ports import EngineError

_CHARS_ON_THE_SPOT = 8192  # measured: 4 ms; a longer text goes to a thread, where the GIL is released


class EmbeddedTokenizer:
    """Usable as soon as the model is loaded, well before the engine is ready; until then `encode` waits."""

    def __init__(self, *, chat_template: str | None, context_tokens_max: int) -> None:
        self._source = chat_template
        self._context_tokens_max = context_tokens_max
        self._settled = trio.Event()
        self._model: Model | None = None
        self._template: ChatTemplate | None = None
        self._failure = ""

    def attach(self, model: Model) -> None:
        """The model is there. Raises `EngineError` if its chat template cannot be compiled."""
        if self._source is not None:
            try:
                self._template = ChatTemplate(
                    self._source, bos_token=model.bos_token, eos_token=model.eos_token
                )
            except jinja2.TemplateError as error:
                raise EngineError(f"the model's chat template is broken: {error}") from error
        self._model = model
        self._settled.set()

    def fail(self, reason: str) -> None:
        """There will be no model."""
        self._failure = reason
        self._settled.set()

    def detach(self) -> None:
        """The model goes away; wait for the next one."""
        self._model, self._template, self._settled = None, None, trio.Event()

    async def encode(self, endpoint: Endpoint, body: Mapping[str, object]) -> tuple[int, ...]:
        """The tokens of a body's prompt, in 1.3 ms for 540.

        Raises:
            RequestError: the body has no prompt, or one that cannot fit by any means.
            EngineError: the model could not be loaded.
        """
        prompt = read_prompt(endpoint, body)
        await self._settled.wait()
        if self._model is None:
            raise EngineError(self._failure)
        if isinstance(prompt, ChatPrompt):
            return await self._tokenize(self._model, endpoint, self._render(prompt), add_special=False)
        if isinstance(prompt, TextPrompt):
            return await self._tokenize(self._model, endpoint, prompt.text, add_special=True)
        if not all(0 <= token < self._model.vocabulary for token in prompt.token_ids):
            raise RequestError(
                f"token ids must lie between 0 and {self._model.vocabulary - 1}", param="prompt"
            )
        return prompt.token_ids

    def _render(self, prompt: ChatPrompt) -> str:
        if self._template is None:
            raise RequestError(
                "this model has no chat template; use /v1/completions", status=400, param="messages"
            )
        return self._template.render(prompt)

    async def _tokenize(
        self, model: Model, endpoint: Endpoint, text: str, *, add_special: bool
    ) -> tuple[int, ...]:
        # Megabytes of text would take seconds to tokenise only to be too long.
        least = len(text) // model.longest_piece
        if least >= self._context_tokens_max:
            limit = self._context_tokens_max
            raise context_length_exceeded(endpoint, tokens=f"at least {least}", limit=limit)
        if len(text) <= _CHARS_ON_THE_SPOT:
            return model.tokenize(text, add_special=add_special)
        return await trio.to_thread.run_sync(lambda: model.tokenize(text, add_special=add_special))
