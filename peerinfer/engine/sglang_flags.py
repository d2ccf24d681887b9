"""The command line and environment with which a node starts SGLang.

The rule: the node needs a few flags (pages of its size, cache events, reported cache hits), a machine
without a GPU needs a few more, and everything else is SGLang's default. A flag of the user's replaces ours of
the same name; those that the node must know itself are refused with the option to use instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import AF_INET, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket

from peerinfer.config import EngineConfig
from peerinfer.node.ports import EngineError

HOST = "127.0.0.1"
"""Its node alone talks to the server, so nobody else can reach it unless a flag says so."""

_OURS = {
    "--model": "give --model NAME_OR_PATH to peerinfer",
    "--model-path": "give --model NAME_OR_PATH to peerinfer",
    "--kv-events-config": "peerinfer sets it, to follow the cache",
    "--disable-radix-cache": "without its prefix cache there is nothing to route by; use --policy local",
    "--api-key": "the server listens on this machine only, and its node has no key for it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a server listens, on `HOST`."""

    http: int
    events: int
    """Cache events as they happen (ZeroMQ PUB)."""
    replay: int
    """Cache events that were missed (ZeroMQ ROUTER)."""


@contextmanager
def reserved_ports(args: Sequence[str]) -> Iterator[Ports]:
    """Ports that nobody else is given while the block lasts; the one for HTTP may be fixed by `--port`.

    SGLang binds them half a minute after it was started. A socket that is bound and does not listen keeps
    the kernel from handing a port to anybody who asks for any, yet lets SGLang bind it, since both set
    SO_REUSEADDR. The arguments have passed `check_args`.
    """
    fixed = flag_value(args, "--port")
    with ExitStack() as stack:
        free = []
        for _ in range(3):
            held = stack.enter_context(socket(AF_INET, SOCK_STREAM))
            held.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            held.bind((HOST, 0))
            free.append(held.getsockname()[1])
        yield Ports(http=int(fixed) if fixed else free[0], events=free[1], replay=free[2])


def server_command(config: EngineConfig, *, python: str, model: str, ports: Ports, gpu: bool) -> list[str]:
    """The command that starts SGLang; the user's flags have passed `check_args`."""
    events = {
        "publisher": "zmq",
        "endpoint": f"tcp://{HOST}:{ports.events}",
        "bind": True,  # a concrete host would be connected to otherwise
        "replay_endpoint": f"tcp://{HOST}:{ports.replay}",
        "topic": "kv",
        "format": "dynamo",  # else prompts with an `extra_key` name their blocks as those without
    }
    flags = {
        "--model-path": model,
        "--served-model-name": served_name(config.args, model),
        "--host": HOST,
        "--port": str(ports.http),
        "--page-size": str(config.page_size),
        "--kv-events-config": json.dumps(events),
        "--enable-cache-report": None,
        "--enable-metrics": None,
        "--load-snapshot-publish-interval": "1",
        "--log-level-http": "warning",
    }
    if not gpu:
        flags |= _cpu_flags(config)
    given = set(_names(config.args))
    ours = [part for name, value in flags.items() if name not in given for part in (name, value) if part]
    return [python, "-W", "ignore", "-m", "sglang.launch_server", *ours, *config.args]


def server_environment(environment: Mapping[str, str], *, model: str, gpu: bool) -> dict[str, str]:
    """The environment for it: what the node has, and what is set here where the user did not set it."""
    ours = {"PYTHONUNBUFFERED": "1"}
    if os.path.isdir(model):
        ours["HF_HUB_OFFLINE"] = "1"  # a model that is here needs no hub, and no hub's timeouts
    if not gpu:
        ours |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        ours["TORCHDYNAMO_DISABLE"] = "1"  # compiling a first penalty takes 3 s, and a C++ compiler
    return ours | dict(environment)


def served_name(args: Sequence[str], model: str) -> str:
    """The name under which SGLang serves a model: a directory's own name, since paths differ on machines."""
    return flag_value(args, "--served-model-name") or (Path(model).name if os.path.isdir(model) else model)


def flag_value(args: Sequence[str], name: str) -> str | None:
    """What a flag is set to, as `--name value` or `--name=value`; the last one counts."""
    value = None
    for index, part in enumerate(args):
        if part == name and index + 1 < len(args):
            value = args[index + 1]
        elif part.startswith(f"{name}="):
            value = part.removeprefix(f"{name}=")
    return value


def check_args(args: Sequence[str]) -> None:
    """Raises `EngineError`, in one line, for flags that are not the user's to set."""
    if args and not args[0].startswith("-"):
        raise EngineError(f"'{args[0]}' is no flag: behind -- come flags of sglang.launch_server")
    for name in _names(args):
        if name in _OURS:
            raise EngineError(f"{name} cannot be set behind --: {_OURS[name]}")
    port = flag_value(args, "--port")
    if port is not None and not (port.isdecimal() and 0 < int(port) < 65536):
        raise EngineError(f"--port {port}: a port is a number from 1 to 65535")


def _names(args: Sequence[str]) -> Iterator[str]:
    return (part.partition("=")[0] for part in args if part.startswith("--"))


def _cpu_flags(config: EngineConfig) -> dict[str, str | None]:
    """Without a GPU: plain torch, no spinning while idle, and as much memory as the config grants."""
    return {
        "--device": "cpu",
        "--attention-backend": "torch_native",
        "--sleep-on-idle": None,
        "--max-total-tokens": str(config.cache_tokens),
        "--context-length": str(config.context_tokens),
        "--max-running-requests": str(max(config.slots, 1)),
        "--chunked-prefill-size": "1024",
    }
