"""Chat templates come with model files: rendered as their authors mean them, in a sandbox."""

from __future__ import annotations

import pytest

from peerinfer.core.types import RequestError
from peerinfer.engine.chat_template import ChatTemplate
from peerinfer.engine.openai_body import ChatPrompt, Message

CHATML = """{% for message in messages %}
    {{ '<' + message.role + '>' + message.content | trim + '</>' }}
{% endfor %}
{% if add_generation_prompt %}
    {{ '<assistant>' }}
{% endif %}"""


def chat(*contents: str, generate: bool = True, go_on: bool = False) -> ChatPrompt:
    roles = ("user", "assistant")
    messages = tuple(Message(roles[at % 2], content) for at, content in enumerate(contents))
    return ChatPrompt(messages, generate, go_on)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")


def test_blocks_are_trimmed_as_model_authors_expect() -> None:
    rendered = template(CHATML).render(chat("hi"))
    assert rendered.split() == ["<user>hi</>", "<assistant>"]
    assert "\n\n" not in rendered


def test_special_tokens_and_loop_controls_are_there() -> None:
    source = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    assert template("{{ bos_token }}" + source).render(chat("a", "b")) == "<s>a"


def test_json_is_not_escaped_for_html() -> None:
    assert template("{{ messages | tojson }}").render(chat("<é>")) == '[{"role": "user", "content": "<é>"}]'


def test_a_continued_message_ends_the_prompt_to_the_last_character() -> None:
    """Trailing blanks included, although the template trims; nothing that closes the message follows."""
    rendered = template(CHATML).render(chat("hi", "Once upon ", generate=False, go_on=True))
    assert rendered.endswith("<assistant>Once upon ")


def test_a_template_may_refuse_a_chat() -> None:
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        template(source).render(chat("hi"))
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].absent.deeper }}",
        "{{ messages[7].content }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content + 5 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_the_requests_error(source: str) -> None:
    with pytest.raises(RequestError):
        template(source).render(chat("hi"))


def test_a_template_that_hides_the_last_message_cannot_continue_it() -> None:
    with pytest.raises(RequestError) as caught:
        template("{{ messages[0].content }}").render(chat("hi", "Once", generate=False, go_on=True))
    assert caught.value.param == "continue_final_message"
