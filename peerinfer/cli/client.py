"""A client of one node: its own JSON, and chats whose answers say where they came from.

A node that is not there, or that answers with an error, is a `CommandError` of status 1: it was tried and
failed. Nothing here retries; the node does that (design: every node is the endpoint).
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import httpx
from click.core import ParameterSource

from peerinfer.cli.errors import CommandError, FailedError
from peerinfer.cli.key import read_api_key
from peerinfer.config import API_KEY

DEFAULT_API = "http://127.0.0.1:8000"
CONNECT_TIMEOUT_S = 5.0
STATUS_TIMEOUT_S = 10.0
_KEY = "peerinfer.api_key"


@dataclass(frozen=True, slots=True)
class NodeApi:
    """Where a node answers, and the key that it wants."""

    url: str
    key: str | None = field(default=None, repr=False)


def api_option(command: Any) -> Any:
    """Add `--api URL`, `--api-key KEY` and `--api-key-file FILE`; their value is one `NodeApi`, `api`."""
    api = click.option(
        "--api",
        envvar="PEERINFER_API",
        default=DEFAULT_API,
        show_default=True,
        show_envvar=True,
        metavar="URL",
        callback=_with_key,
        help="The node to ask.",
    )
    key = click.option(
        "--api-key",
        envvar="PEERINFER_API_KEY",
        show_envvar=True,
        metavar="KEY",
        is_eager=True,
        expose_value=False,
        callback=_keep_key,
        help="The key that the node wants; the variable keeps it out of `ps`.",
    )
    file = click.option(
        "--api-key-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_keep_key_of_file,
        help="The same, in a file that only you can read.",
    )
    return api(key(file(command)))


def _keep_key(context: click.Context, param: click.Parameter, key: str | None) -> None:
    if key and not API_KEY.fullmatch(key):
        raise click.BadParameter("a key has no spaces and only ASCII characters", ctx=context)
    given = context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    if given or _KEY not in context.meta:  # a file that was given counts before the environment
        context.meta[_KEY] = key or None


def _keep_key_of_file(context: click.Context, _param: click.Parameter, path: Path | None) -> None:
    if path is not None:
        context.meta[_KEY] = read_api_key(path)


def _with_key(context: click.Context, _param: click.Parameter, url: str) -> NodeApi:
    return NodeApi(url, context.meta[_KEY])


@dataclass(slots=True, kw_only=True)
class Answer:
    """One chat's answer, and how it came about; None is what the node did not say."""

    request_id: str | None = None
    served_by: str | None = None
    """Who sent the first token."""
    servers: list[str] = field(default_factory=list)
    """All who served a part of it, in order: more than one where the answer went on elsewhere."""
    route: str | None = None
    expected_cached_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    """From sending the request to the first text, as this client saw it."""
    duration_s: float = 0.0
    text: str = field(default="", repr=False)


class NodeError(FailedError):
    """The node cannot be reached, or refused."""


class NodeClient:
    """One node's API. Make it with `open_client`."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self.url = url

    async def get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path. Raises `NodeError`."""
        return _object(await self._get(path))

    async def get_text(self, path: str) -> str:
        """The JSON at a path exactly as the node wrote it. Raises `NodeError`."""
        response = await self._get(path)
        _object(response)
        return response.text

    async def is_ready(self) -> bool:
        """Whether a completion would be answered now; False also while there is nobody to ask."""
        try:
            response = await self._http.get(f"{self.url}/readyz", timeout=STATUS_TIMEOUT_S)
        except httpx.HTTPError:
            return False
        return response.is_success

    async def model(self) -> str:
        """The name of the model that the node serves. Raises `NodeError`."""
        models = (await self.get("/v1/models")).get("data")
        if not isinstance(models, list) or not models:
            raise NodeError(f"the node at {self.url} serves no model yet: try again in a moment")
        return str(models[0]["id"])

    async def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        model: str,
        max_tokens: int | None = None,
        policy: str | None = None,
        on_text: Callable[[str], None] = lambda _text: None,
    ) -> Answer:
        """Stream one chat's answer, greedily decoded. Raises `NodeError`, also for one that breaks off."""
        body: dict[str, Any] = {
            "model": model,
            "messages": list(messages),
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        headers = {} if policy is None else {"x-peerinfer-policy": policy}
        answer = Answer()
        started = time.perf_counter()
        try:
            async with self._http.stream(
                "POST",
                f"{self.url}/v1/chat/completions",
                json=body,
                headers=headers,
                timeout=_CONNECT_ONLY,
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise NodeError(_refusal(response))
                _read_headers(answer, response.headers)
                async for event in _events(response):
                    text = _read_event(answer, event)
                    if text and answer.ttft_s is None:
                        answer.ttft_s = time.perf_counter() - started
                    if text:
                        answer.text += text
                        on_text(text)
        except httpx.HTTPError as error:
            raise self._unreachable(error, broke_off=bool(answer.text)) from None
        answer.duration_s = time.perf_counter() - started
        return answer

    async def complete(
        self,
        tokens: Sequence[int],
        *,
        model: str,
        max_tokens: int,
        policy: str | None = None,
        target: str | None = None,
    ) -> Answer:
        """The whole answer to a prompt of token ids, greedily decoded. Raises `NodeError`."""
        body = {"model": model, "prompt": list(tokens), "max_tokens": max_tokens, "temperature": 0}
        wanted = {"x-peerinfer-policy": policy, "x-peerinfer-target": target}
        headers = {name: value for name, value in wanted.items() if value is not None}
        answer = Answer()
        started = time.perf_counter()
        try:
            response = await self._http.post(
                f"{self.url}/v1/completions",
                json=body | {"ignore_eos": True},
                headers=headers,
                timeout=_CONNECT_ONLY,
            )
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        answer.duration_s = time.perf_counter() - started
        if not response.is_success:
            raise NodeError(_refusal(response))
        _read_headers(answer, response.headers)
        _read_usage(answer, _object(response))
        return answer

    async def servers(self, answer: Answer) -> list[str]:
        """All who served a part of an answer, in order, as far as its node says."""
        first = [] if answer.served_by is None else [answer.served_by]
        try:
            decision = await self.get(f"/peerinfer/v1/requests/{quote(answer.request_id or '-', safe='')}")
        except NodeError:  # it is kept for a while only, and by this version's nodes
            return first
        attempts = [each for each in decision.get("attempts") or () if isinstance(each, dict)]
        served = [
            str(each.get("peer_id")) for each in attempts if each.get("outcome") in ("broken", "served")
        ]
        return [peer for peer, _ in groupby(served)] or first

    async def _get(self, path: str) -> httpx.Response:
        try:
            response = await self._http.get(f"{self.url}{path}", timeout=STATUS_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        if not response.is_success:
            raise NodeError(_refusal(response))
        return response

    def _unreachable(self, error: httpx.HTTPError, *, broke_off: bool = False) -> NodeError:
        if broke_off:
            return NodeError(f"the answer broke off: the connection to {self.url} is gone")
        if isinstance(error, httpx.ConnectError):
            return NodeError(f"no node answers at {self.url}: run `peerinfer serve`, or give --api URL")
        return NodeError(f"the node at {self.url} does not answer: {error or type(error).__name__}")


_CONNECT_ONLY = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)


@asynccontextmanager
async def open_client(api: NodeApi) -> AsyncIterator[NodeClient]:
    """A client of the node at a URL, which may end in `/` or `/v1`. Raises `CommandError`."""
    base = api.url.rstrip("/").removesuffix("/v1")
    try:
        parsed = httpx.URL(base)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise CommandError(f"--api: '{api.url}' is no URL, as in {DEFAULT_API}")
    # trust_env is off: a proxy for the internet is in the way of a node on this machine or LAN.
    headers = {} if api.key is None else {"authorization": f"Bearer {api.key}"}
    async with httpx.AsyncClient(trust_env=False, headers=headers) as http:
        yield NodeClient(http, base)


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise NodeError(f"{response.url} answers, but not as a peerinfer node does")
    return content


def _refusal(response: httpx.Response) -> str:
    """What a node that answered with an error said, as a line."""
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.reason_phrase or "error"
    return f"the node at {response.url.copy_with(path='')} refused ({response.status_code}): {message}"


def _read_headers(answer: Answer, headers: httpx.Headers) -> None:
    answer.request_id = headers.get("x-peerinfer-request-id")
    answer.served_by = headers.get("x-peerinfer-served-by")
    answer.route = headers.get("x-peerinfer-route")
    expected = headers.get("x-peerinfer-expected-cached-tokens", "")
    answer.expected_cached_tokens = int(expected) if expected.isdigit() else None


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event up to `[DONE]`.

    Split at newlines alone: `aiter_lines` also splits at U+2028 and U+0085, which JSON may hold.
    """
    buffer = b""
    async for data in response.aiter_bytes():
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line.removeprefix(b"data:").strip()
            if payload == b"[DONE]":
                return
            try:
                event = json.loads(payload)
            except ValueError:
                raise NodeError(f"the answer broke off: {response.url} sent what is no JSON") from None
            if isinstance(event, dict):
                yield event
    raise NodeError(f"the answer broke off: {response.url} ended it without [DONE]")


def _read_event(answer: Answer, event: dict[str, Any]) -> str:
    """Take the usage from an event and return its text. Raises `NodeError` for an error event."""
    error = event.get("error")
    if isinstance(error, dict):
        raise NodeError(f"the answer broke off: {error.get('message', 'error')}")
    _read_usage(answer, event)
    choices = event.get("choices") or [{}]
    content = (choices[0].get("delta") or {}).get("content")
    return content if isinstance(content, str) else ""


def _read_usage(answer: Answer, said: dict[str, Any]) -> None:
    usage = said.get("usage")
    if isinstance(usage, dict):
        answer.prompt_tokens = usage.get("prompt_tokens")
        answer.completion_tokens = usage.get("completion_tokens")
        details = usage.get("prompt_tokens_details") or {}
        answer.cached_tokens = details.get("cached_tokens")
