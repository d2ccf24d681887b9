"""Renders a model's own chat template, in Jinja's sandbox.

The template comes with the model file, so it is somebody else's program: the sandbox keeps it from the
interpreter's insides, and whatever it raises becomes the request's error. The environment is the one that
model authors write for (Hugging Face's): trimmed blocks, loop controls, blocks of what the model said,
`raise_exception`, `strftime_now`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from peerinfer.core.types import RequestError
from peerinfer.engine.openai_body import ChatPrompt

# Stands at the end of a message that is to be continued while it is rendered; the prompt ends right there.
_CUT = "\ue000peerinfer-cut\ue000"


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the model said, for training; here it is only looked through."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The block's content in place of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. Raises `jinja2.TemplateError` for a source that is none.

    `tokens` are the special ones by the names that templates use: `bos_token`, `eos_token` …
    """

    def __init__(self, source: str, **tokens: str) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        environment.filters["tojson"] = _to_json
        self._template = environment.from_string(source)
        self._tokens = tokens

    def render(self, prompt: ChatPrompt) -> str:
        """The text that the model is to continue. Raises `RequestError` if the template refuses the chat."""
        messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
        if prompt.continue_final_message:
            messages[-1]["content"] += _CUT
        text = self.render_messages(messages, add_generation_prompt=prompt.add_generation_prompt)
        if not prompt.continue_final_message:
            return text
        head, mark, _ = text.rpartition(_CUT)
        if not mark:
            raise RequestError(
                "the model's chat template does not show the last message, so it cannot be continued",
                param="continue_final_message",
            )
        return head

    def render_messages(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text of these messages, as they are. Raises `RequestError` if the template refuses them."""
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        # A template can fail in any way that a Python program can: a missing key, a wrong type, too deep.
        except (
            jinja2.TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise RequestError(
                f"the model's chat template refuses this chat: {error}", param="messages"
            ) from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes HTML, which would change what the model reads.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
