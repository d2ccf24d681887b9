"""Renders a model's own chat template, in Jinja's sandbox.

The template comes with the model file, so it is somebody else's program: the sandbox keeps it from the
interpreter's insides, and whatever it raises becomes the request's error. The environment is the one that
model authors write for (Hugging Face's): trimmed blocks, loop controls, `raise_exception`, `strftime_now`.
"""

from __future__ import annotations

import datetime
import json
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from peerinfer.core.types import RequestError
from peerinfer.engine.openai_body import ChatPrompt

# Stands at the end of a message that is to be continued while it is rendered; the prompt ends right there.
_CUT = "\ue000peerinfer-cut\ue000"


class ChatTemplate:
    """A compiled template. Raises `jinja2.TemplateError` for a source that is none."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        environment.filters["tojson"] = _to_json
        self._template = environment.from_string(source)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, prompt: ChatPrompt) -> str:
        """The text that the model is to continue. Raises `RequestError` if the template refuses the chat."""
        messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
        if prompt.continue_final_message:
            messages[-1]["content"] += _CUT
        try:
            text = self._template.render(
                messages=messages,
                add_generation_prompt=prompt.add_generation_prompt,
                tools=None,
                **self._tokens,
            )
        # A template can fail in any way that a Python program can: a missing key, a wrong type, too deep.
        except (
            jinja2.TemplateError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise RequestError(
                f"the model's chat template refuses this chat: {error}", param="messages"
            ) from error
        if not prompt.continue_final_message:
            return text
        head, mark, _ = text.rpartition(_CUT)
        if not mark:
            raise RequestError(
                "the model's chat template does not show the last message, so it cannot be continued",
                param="continue_final_message",
            )
        return head


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _to_json(value: object, indent: int | None = None) -> str:
    # Jinja's own escapes HTML, which would change what the model reads.
    return json.dumps(value, ensure_ascii=False, indent=indent)
