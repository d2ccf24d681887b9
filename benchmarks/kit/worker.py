"""An SGLang-shaped HTTP server without a model: `python -m benchmarks.kit.worker --model DIRECTORY --port N`.

To clients, to nodes and to central routers it looks like SGLang 0.5.23: chats and completions, streamed and
whole, `/v1/tokenize`, `/server_info`, `/v1/loads`, cache events with a replay. `GET /_stats` tells what it
did, `GET /_reset` sets that to zero and empties its cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.kit.engine import PAGE, Job, Pace, WorkerEngine
from benchmarks.kit.events import EventPublisher
from benchmarks.kit.http_parts import Message, take_chunks, take_head
from benchmarks.kit.vocabulary import WORDS, render, spell

MODEL = "bench"
KINDS = {b"/v1/chat/completions": "chat", b"/v1/completions": "text"}
REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found"}


class Worker:
    """One server: its engine, its words, and the pages about it."""

    def __init__(self, *, name: str, model: Path, pace: Pace) -> None:
        self.name = name
        self.pace = pace
        self.publisher = EventPublisher()
        self.engine = WorkerEngine(pace, self.publisher.publish)
        self._model = model
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def encode(self, body: Mapping[str, Any]) -> list[int] | None:
        """A prompt's tokens; None if it is no plain text."""
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            return prompt
        text = render(body)
        return None if text is None else list(self._tokenizer.encode(text).ids)

    def page(self, path: bytes, raw: bytes) -> tuple[int, Any]:
        """What a path says."""
        counts = self.engine.counts
        match path:
            case b"/health" | b"/health_generate":
                return 200, {}
            case b"/v1/models":
                listed = {"id": MODEL, "object": "model", "owned_by": "sglang", "root": str(self._model)}
                return 200, {"object": "list", "data": [listed]}
            case b"/server_info" | b"/get_server_info":
                return 200, self._info()
            case b"/model_info" | b"/get_model_info":
                return 200, {"model_path": str(self._model), "is_generation": True, "model_type": "llama"}
            case b"/v1/loads":
                return 200, {"loads": [self._load()]}
            case b"/get_load":
                return 200, [{"dp_rank": 0, **self._load()}]
            case b"/v1/tokenize":
                tokens = self.encode(json.loads(raw))
                return (400, {}) if tokens is None else (200, {"tokens": tokens, "count": len(tokens)})
            case b"/abort_request" | b"/flush_cache":
                return 200, {}
            case b"/_stats":
                return 200, {**counts, "pages": len(self.engine.cache)}
            case b"/_reset":
                self.engine.cache.clear()
                counts.update(dict.fromkeys(counts, 0))
                return 200, {}
        return 404, {"detail": "Not Found"}

    def _info(self) -> dict[str, object]:
        return {
            "model_path": str(self._model),
            "tokenizer_path": str(self._model),
            "served_model_name": MODEL,
            "version": "0.5.23",
            "page_size": PAGE,
            "context_length": 32_768,
            "max_total_num_tokens": self.pace.capacity_tokens,
            "max_running_requests": self.pace.running_max,
            "tp_size": 1,
            "dp_size": 1,
            "enable_cache_report": True,
            "disable_radix_cache": False,
            "disaggregation_mode": "null",
            "kv_events": {
                "endpoint_host": "127.0.0.1",
                "endpoint_port_base": self.publisher.port,
                "replay_endpoint_port_base": self.publisher.replay_port,
                "topic": "",
                "dp_size": 1,
                "block_size": PAGE,
            },
        }

    def _load(self) -> dict[str, int]:
        engine = self.engine
        return {
            "num_reqs": len(engine.running) + len(engine.queue),
            "num_running_reqs": len(engine.running),
            "num_waiting_reqs": len(engine.queue),
            "num_tokens": sum(len(job.tokens) for job in engine.running),
            "num_waiting_uncached_tokens": engine.waiting_tokens,
            "max_running_requests": self.pace.running_max,
            "total_prefill_uncached_tokens": engine.counts["prompt_tokens"] - engine.counts["cached_tokens"],
            "total_prefill_busy_us": engine.counts["prefill_us"],
        }


class Connection(asyncio.Protocol):
    """One client; one request at a time."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._buffer = bytearray()
        self._head: Message | None = None
        self._content = b""
        self._answer: Answer | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        if self._answer is not None:
            self._worker.engine.leave(self._answer.job)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._read()

    def write(self, data: bytes, *, last: bool) -> None:
        """Send a part of the answer."""
        if self._transport is not None:
            self._transport.write(data)
            if last:
                self._answer = None
                if self._buffer:
                    asyncio.get_running_loop().call_soon(self._read)

    def _read(self) -> None:
        while self._answer is None and (raw := self._request()) is not None:
            assert self._head is not None
            method, target, _ = self._head.first_line.split(b" ", 2)
            path, self._head = target.partition(b"?")[0], None
            if method == b"POST" and path in KINDS:
                self._infer(KINDS[path], raw)
            else:
                status, body = self._worker.page(path, raw)
                self._whole(status, compact(body))

    def _request(self) -> bytes | None:
        """The next request's body, once it is all there."""
        if self._head is None:
            self._head, self._content = take_head(self._buffer), b""
        if self._head is None:
            return None
        if self._head.chunked:
            content, complete = take_chunks(self._buffer)
            self._content += content
            return self._content if complete else None
        length = self._head.length or 0
        if len(self._buffer) < length:
            return None
        raw = bytes(self._buffer[:length])
        del self._buffer[:length]
        return raw

    def _infer(self, kind: str, raw: bytes) -> None:
        body = json.loads(raw)
        tokens = self._worker.encode(body)
        if not tokens:
            self._whole(400, compact({"error": {"message": "no plain prompt", "type": "invalid_request"}}))
            return
        self._answer = Answer(self, self._worker, kind, body)
        job = Job(tokens, max(1, body.get("max_tokens") or 16), self._answer.emit)
        self._answer.job = job
        self._worker.engine.submit(job)

    def _whole(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.write(head % (status, REASONS[status], len(body)) + body, last=True)


class Answer:
    """One answer on its way out, streamed or whole."""

    job: Job

    def __init__(self, connection: Connection, worker: Worker, kind: str, body: Mapping[str, Any]) -> None:
        self._connection = connection
        self._name = worker.name.encode()
        self._chat = kind == "chat"
        self._stream = body.get("stream") is True
        self._usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._begun = False
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head = {"id": body.get("rid") or f"bench-{id(self)}", "object": kind, "created": int(time.time())}
        self._envelope = compact({**head, "model": MODEL, "system_fingerprint": worker.name})[:-1]

    def emit(self, tokens: Sequence[int], last: bool) -> None:
        """These tokens more."""
        if not self._stream:
            if last:
                self._send_whole()
            return
        out = b"" if self._begun else self._begin()
        final = len(tokens) - 1 if last else -1
        events = b"".join([self._event(token, place == final) for place, token in enumerate(tokens)])
        if last and self._usage:
            events += b'data: %b,"choices":[],"usage":%b}\n\n' % (self._envelope, self._counted())
        if last:
            events += b"data: [DONE]\n\n"
        out += b"%x\r\n%b\r\n" % (len(events), events) + (b"0\r\n\r\n" if last else b"")
        self._connection.write(out, last=last)

    def _begin(self) -> bytes:
        self._begun = True
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nx-served-by: %b\r\n"
        head = head % self._name + b"transfer-encoding: chunked\r\n\r\n"
        if not self._chat:
            return head
        role = b'data: %b,"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
        role %= self._envelope
        return head + b"%x\r\n%b\r\n" % (len(role), role)

    def _event(self, token: int, last: bool) -> bytes:
        reason = b'"length"' if last else b"null"
        piece = b'"delta":{"content":" %b"}' if self._chat else b'"text":" %b"'
        piece %= WORDS[token].encode()
        end = b'"logprobs":null,"finish_reason":%b,"matched_stop":null}]}\n\n' % reason
        return b"data: " + self._envelope + b',"choices":[{"index":0,' + piece + b"," + end

    def _counted(self) -> bytes:
        job = self.job
        return compact(
            {
                "prompt_tokens": len(job.tokens),
                "completion_tokens": len(job.made),
                "total_tokens": len(job.tokens) + len(job.made),
                "prompt_tokens_details": {"cached_tokens": job.cached},
            }
        )

    def _send_whole(self) -> None:
        text = " " + spell(self.job.made)
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        envelope = self._envelope.replace(b".chunk", b"", 1)
        body = envelope + b',"choices":[%b],"usage":%b}' % (compact(choice), self._counted())
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-served-by: %b\r\n" % self._name
        self._connection.write(head + b"content-length: %d\r\n\r\n" % len(body) + body, last=True)


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def serve(*, port: int, worker_of: Any) -> None:
    """Listen until a signal comes."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    worker: Worker = worker_of()
    replays = loop.create_task(worker.publisher.serve_replays())
    server = await loop.create_server(lambda: Connection(worker), "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    await stop.wait()
    replays.cancel()
    server.close()


def main() -> None:
    """Run one worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    usual = Pace()
    parser.add_argument("--capacity", type=int, default=usual.capacity_tokens)
    parser.add_argument("--prefill", type=float, default=usual.prefill_tokens_per_s)
    parser.add_argument("--decode", type=float, default=usual.decode_tokens_per_s)
    parser.add_argument("--instant", action="store_true")
    options = parser.parse_args()
    pace = Pace(
        capacity_tokens=options.capacity,
        prefill_tokens_per_s=options.prefill,
        decode_tokens_per_s=options.decode,
        instant=options.instant,
    )
    name = f"worker-{options.port}"
    asyncio.run(serve(port=options.port, worker_of=lambda: Worker(name=name, model=options.model, pace=pace)))


if __name__ == "__main__":
    main()
