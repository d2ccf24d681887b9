"""What SGLang makes of a chat before its template sees it (0.5.23, `serving_chat.py`), done likewise.

The rule: whatever is not certain to come out alike is `None`, and the server is asked then. A tree's keys
rest on the tokens, and a wrong guess here would cost every request its prefix.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "chat", "parts", "tools", "answered", "continued"]
"""What a prompt has that can come out otherwise than the server has it: each is checked by itself."""

_ROLES = {"system", "assistant", "tool", "function", "developer", "latest_reminder", "root"}
_SHAPING = {"chat_template_kwargs", "reasoning_effort", "reasoning", "thinking", "task", "input_ids"}
_MESSAGE = ("tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "prefix")
_FUNCTION = ("description", "name", "parameters", "strict", "defer_loading")


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangChat:
    """A chat as the template gets it."""

    messages: list[dict[str, object]]
    tools: list[dict[str, object]] | None
    prefix: str
    """The beginning of the answer, which is tokenised by itself and appended."""
    kinds: frozenset[Kind]


def read_chat(body: Mapping[str, object]) -> SglangChat | None:
    """The chat in a body; None where only the server can tell."""
    if any(body.get(name) is not None for name in _SHAPING):
        return None
    raw = body.get("messages")
    if not isinstance(raw, list) or not raw:
        return None
    kinds: set[Kind] = {"chat"}
    messages = []
    for item in raw:
        message = _message(item, kinds)
        if message is None:
            return None
        messages.append(message)
    goes_on = body.get("continue_final_message") is True
    prefix = ""
    last = messages[-1]
    content = last["content"]
    if last["role"] == "assistant" and isinstance(content, str):
        if goes_on:
            kinds.add("continued")
            prefix = content
            del messages[-1]
        else:
            kinds.add("answered")
            messages[-1] = {"role": "user", "content": content}
    tools = _tools(body)
    if tools is None:
        return None
    if tools:
        kinds.add("tools")
    return SglangChat(messages=messages, tools=tools or None, prefix=prefix, kinds=frozenset(kinds))


def _message(raw: object, kinds: set[Kind]) -> dict[str, object] | None:
    role = raw.get("role") if isinstance(raw, Mapping) else None
    if not isinstance(raw, Mapping) or not isinstance(role, str):
        return None
    content = _content(raw.get("content"), kinds)
    if role == "user":
        return None if content is None or raw.get("content") is None else {"role": role, "content": content}
    if content is None or role.lower() not in _ROLES or raw.get("tools"):
        return None
    message: dict[str, object] = {"role": role.lower(), "content": content}
    for name in _MESSAGE:
        value = raw.get(name)
        if value is None:
            continue
        if name == "tool_calls":
            kinds.add("tools")
            value = _tool_calls(value, parsed=role.lower() == "assistant")
            if value is None:
                return None
        elif type(value) is not (bool if name == "prefix" else str):
            return None
        message[name] = value
    if role.lower() == "tool":
        kinds.add("tools")
    return message


def _content(raw: object, kinds: set[Kind]) -> str | None:
    """Text; the texts of a list's parts are joined, as for a template that takes strings only."""
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        return None
    kinds.add("parts")
    texts = []
    for part in raw:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return " ".join(texts)


def _tool_calls(raw: object, *, parsed: bool) -> list[dict[str, object]] | None:
    """Calls with every member of SGLang's type; an assistant's arguments are parsed for the template."""
    if not isinstance(raw, list):
        return None
    calls = []
    for call in raw:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(call, Mapping) or not isinstance(function, Mapping):
            return None
        arguments = function.get("arguments")
        if parsed and isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                return None
            if not isinstance(arguments, dict):
                return None
        calls.append(
            {
                "id": call.get("id"),
                "index": call.get("index"),
                "type": call.get("type", "function"),
                "function": {"name": function.get("name"), "arguments": arguments},
            }
        )
    return calls


def _tools(body: Mapping[str, object]) -> list[dict[str, object]] | None:
    """The tools that the template shows, none of them as an empty list; None where that is not certain."""
    raw, choice = body.get("tools"), body.get("tool_choice")
    if raw is None or raw == [] or choice == "none":
        return []
    if not isinstance(raw, list):
        return None
    tools = []
    for tool in raw:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(tool, Mapping) or not isinstance(function, Mapping):
            return None
        if not isinstance(function.get("name"), str) or tool.get("defer_loading") is not None:
            return None
        tools.append(
            {"type": tool.get("type", "function"), "function": _function(function), "defer_loading": None}
        )
    if choice is None or choice in ("auto", "required"):
        return tools
    chosen = choice.get("function") if isinstance(choice, Mapping) else None
    name = chosen.get("name") if isinstance(chosen, Mapping) else None
    return [tool for tool in tools if tool["function"]["name"] == name] or None


def _function(raw: Mapping[str, object]) -> dict[str, object]:
    """The client's members in its order, then those of SGLang's type that it left out."""
    values = {name: raw.get(name) for name in _FUNCTION}
    for name in ("strict", "defer_loading"):
        if values[name] is None:
            del values[name]
    order = [name for name in raw if name in values]
    return {name: values[name] for name in (*order, *(name for name in values if name not in order))}
