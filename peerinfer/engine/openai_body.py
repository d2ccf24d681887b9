"""Reads OpenAI request bodies for our own engines, and refuses what they cannot honour.

The rule: a parameter that would change the answer and is not supported gets a 400 that names it, never
silence. So parameters come in four kinds: supported, inert (they change nothing in an answer), accepted at
the one value that does nothing, and refused; a parameter we have never heard of is refused too, and `null`
always means the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peerinfer.core.openai_defaults import DEFAULT_COMPLETION_TOKENS, INERT, NO_OP, is_one_of
from peerinfer.core.types import Endpoint, RequestError

TEMPERATURE_MAX = 2.0  # OpenAI's limit
STOPS_MAX = 4  # OpenAI's limit
STOP_CHARS_MAX = 256  # guess: what is held back of a stream is bounded by it

_EVERYWHERE = {"model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed", "stop", "n"}
_EVERYWHERE |= {"ignore_eos"}  # SGLang's and vLLM's: an answer of exactly max_tokens, for measurements
_CHAT = {"messages", "max_completion_tokens", "add_generation_prompt", "continue_final_message"}
_SUPPORTED: Mapping[Endpoint, frozenset[str]] = {
    "chat": frozenset(_EVERYWHERE | _CHAT),
    "completions": frozenset(_EVERYWHERE | {"prompt"}),
}
_NO_OP: Mapping[str, tuple[object, ...]] = {
    **NO_OP,
    "logit_bias": ({},),
    "top_k": (-1, 0),
    "min_p": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "skip_special_tokens": (True,),
    "cache_salt": ("",),
}
_MESSAGE_KEYS = frozenset({"role", "content"})
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat, its text parts joined."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """What the chat template is to render."""

    messages: tuple[Message, ...]
    add_generation_prompt: bool
    continue_final_message: bool
    """The last message is the answer's beginning: go on right after its last character."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text to be continued."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Tokens to be continued, as the client numbered them."""

    token_ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the answer is to be drawn, and where it ends."""

    max_tokens: int | None
    """None: until the model ends the answer or the context is full."""
    temperature: float
    top_p: float
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool


def read_prompt(endpoint: Endpoint, body: Mapping[str, object]) -> Prompt:
    """The prompt of a body. Raises `RequestError` naming what is wrong with it."""
    if endpoint == "chat":
        return _read_chat(body)
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return TextPrompt(_encodable(prompt, "prompt"))
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes) and prompt:
        if set(map(type, prompt)) == {int}:  # a third of the time that `all` takes, and no bool is one
            return TokenPrompt(tuple(prompt))
        if len(prompt) == 1 and isinstance(prompt[0], str):
            return TextPrompt(_encodable(prompt[0], "prompt"))
        if all(isinstance(item, str | list) for item in prompt):
            raise RequestError(
                "one prompt per request: `prompt` must not be a list of prompts", param="prompt"
            )
    raise RequestError("`prompt` must be a string or a list of token ids", param="prompt")


def read_options(endpoint: Endpoint, body: Mapping[str, object]) -> Options:
    """The options of a body. Raises `RequestError` naming what is wrong or not supported."""
    for name, value in body.items():
        _refuse_unsupported(endpoint, name, value)
    if _integer(body, "n", least=1) not in (None, 1):
        raise RequestError("`n` must be 1: one answer per request", param="n", code="unsupported_parameter")
    max_tokens = _integer(body, "max_tokens", least=1)
    if endpoint == "chat":
        newer = _integer(body, "max_completion_tokens", least=1)
        max_tokens = max_tokens if newer is None else newer
    elif max_tokens is None:
        max_tokens = DEFAULT_COMPLETION_TOKENS
    return Options(
        max_tokens=max_tokens,
        temperature=_number(body, "temperature", default=1.0, most=TEMPERATURE_MAX),
        top_p=_number(body, "top_p", default=1.0, most=1.0),
        seed=_integer(body, "seed"),
        stop=_stops(body.get("stop")),
        ignore_eos=_flag(body, "ignore_eos", default=False),
    )


def _read_chat(body: Mapping[str, object]) -> ChatPrompt:
    raw = body.get("messages")
    if not isinstance(raw, list) or not raw:
        raise RequestError("`messages` must be a list of at least one message", param="messages")
    messages = tuple(_message(message, f"messages[{at}]") for at, message in enumerate(raw))
    goes_on = _flag(body, "continue_final_message", default=False)
    generation = _flag(body, "add_generation_prompt", default=not goes_on)
    if goes_on and generation:
        raise RequestError(
            "`continue_final_message` and `add_generation_prompt` exclude each other",
            param="continue_final_message",
        )
    if goes_on and messages[-1].role != "assistant":
        raise RequestError(
            "`continue_final_message` needs a last message of role `assistant`",
            param="continue_final_message",
        )
    return ChatPrompt(messages, generation, goes_on)


def _message(raw: object, where: str) -> Message:
    if not isinstance(raw, Mapping):
        raise RequestError(f"`{where}` must be an object", param=where)
    role = raw.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise RequestError(
            f"`{where}.role` must be one of {', '.join(sorted(_ROLES))}; tools are not supported",
            param=f"{where}.role",
        )
    for key, value in raw.items():
        if key not in _MESSAGE_KEYS and value not in (None, []):
            raise RequestError(f"`{where}.{key}` is not supported by this engine", param=f"{where}.{key}")
    return Message(_ROLES[role], _content(raw.get("content"), f"{where}.content", role))


def _content(raw: object, where: str, role: str) -> str:
    if raw is None and role == "assistant":
        return ""
    if isinstance(raw, str):
        return _encodable(raw, where)
    if not isinstance(raw, list):
        raise RequestError(f"`{where}` must be a string or a list of text parts", param=where)
    texts = []
    for at, part in enumerate(raw):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            raise RequestError(
                f"`{where}[{at}]`: only parts of type `text` are supported, not `{kind}`",
                param=f"{where}[{at}]",
            )
        texts.append(_encodable(text, f"{where}[{at}].text"))
    # One space, as SGLang joins them, so that a mixed swarm tokenises one body in one way.
    return " ".join(texts)


def _encodable(text: str, where: str) -> str:
    """The text itself; JSON can carry half a surrogate pair, which is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"`{where}` contains half of a surrogate pair", param=where) from None
    return text


def _refuse_unsupported(endpoint: Endpoint, name: str, value: object) -> None:
    if value is None or name in _SUPPORTED[endpoint] or name in INERT:
        return
    if not is_one_of(value, _NO_OP.get(name, ())):
        raise RequestError(
            f"`{name}` is not supported by this engine", param=name, code="unsupported_parameter"
        )


def _integer(body: Mapping[str, object], name: str, *, least: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise RequestError(f"`{name}` must be an integer{bound}", param=name)
    return value


def _number(body: Mapping[str, object], name: str, *, default: float, most: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"`{name}` must be a number", param=name)
    if not 0 <= value <= most:  # nor is NaN between them; a whole number may be too long for a float
        raise RequestError(f"`{name}` must lie between 0 and {most:g}", param=name)
    return float(value)


def _flag(body: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"`{name}` must be true or false", param=name)
    return value


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise RequestError("`stop` must be a string or a list of strings", param="stop")
    if len(stops) > STOPS_MAX or not all(0 < len(stop) <= STOP_CHARS_MAX for stop in stops):
        raise RequestError(
            f"`stop` takes at most {STOPS_MAX} strings of 1 to {STOP_CHARS_MAX} characters", param="stop"
        )
    return tuple(stops)
