"""The options that every node command has, and the `Config` they make.

Where a value comes from, strongest first: the command line, `--config FILE.toml`, the defaults in
`peerinfer/config.py`. An option left out leaves the file's tables alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import click

from peerinfer.cli.addresses import HostPort, checked, parse_announce, parse_host_port, parse_listen
from peerinfer.cli.config_file import base_config, config_option
from peerinfer.cli.errors import CommandError
from peerinfer.cli.invite import parse_whom, unfold
from peerinfer.cli.key import read_api_key, read_swarm_key, swarm_key_option
from peerinfer.config import (
    RANGES,
    AntiEntropyConfig,
    Config,
    EngineConfig,
    HttpConfig,
    OverlayConfig,
    RoutingConfig,
)
from peerinfer.core.policies import POLICIES
from peerinfer.core.swarm_key import SwarmKey

Section = TypeVar("Section", RoutingConfig, AntiEntropyConfig, OverlayConfig, EngineConfig, HttpConfig)

ENGINES = ("auto", "sglang", "embedded", "simulated")
PAGE_SIZES = (int(RANGES["page_size"][0]), int(RANGES["page_size"][1]))
FLAGS = "peerinfer.sglang_flags"


class NodeCommand(click.Command):
    """A command behind whose `--` come flags for another program, SGLang, and not arguments of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the flags aside."""
        if "--" in args:
            end = args.index("--")
            args, ctx.meta[FLAGS] = args[:end], tuple(args[end + 1 :])
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Say so in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- SGLANG_FLAGS]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """One node, as it was asked for."""

    config: Config
    data_dir: Path | None
    """None for the default."""
    serves_http: bool
    """`--http` was given."""
    swarm_key: SwarmKey | None
    """None for an open swarm."""
    api_key_file: Path | None
    swarm_key_file: Path | None
    as_json: bool
    until_stdin_closes: bool

    @property
    def api_key_file_shown(self) -> str | None:
        """As a shell takes it; None if there is none."""
        return None if self.api_key_file is None else shlex.quote(str(self.api_key_file))

    @property
    def swarm_key_shown(self) -> str | None:
        """As a shell takes it; None if there is none."""
        return None if self.swarm_key_file is None else shlex.quote(str(self.swarm_key_file))


def node_options(*, engine: bool) -> Callable[[Callable[[NodeOptions], None]], Callable[..., None]]:
    """Make a click callback of a function of `NodeOptions`, with the options of a node (with an engine)."""

    def decorate(command: Callable[[NodeOptions], None]) -> Callable[..., None]:
        def callback(**values: Any) -> None:
            context = click.get_current_context()
            command(collect(base_config(context), engine_args=context.meta.get(FLAGS), **values))

        decorated: Callable[..., None] = update_wrapper(callback, command)
        for option in reversed([*_COMMON, *(_ENGINE if engine else _NO_ENGINE), *_ACCESS, *_OUTPUT]):
            decorated = option(decorated)
        return decorated

    return decorate


def collect(
    base: Config,
    *,
    listen: tuple[str, ...],
    announce: tuple[str, ...] = (),
    upnp: bool | None = None,
    http: HostPort | None = None,
    addrs: tuple[str, ...] = (),
    engine: str | None = None,
    engine_url: str | None = None,
    engine_python: str | None = None,
    engine_args: tuple[str, ...] | None = None,
    model: str | None = None,
    policy: str | None = None,
    poll_interval: float | None = None,
    page_size: int | None = None,
    allow_overrides: bool | None = None,
    api_key: str | None = None,
    api_key_file: Path | None = None,
    insecure: bool | None = None,
    allow_host: tuple[str, ...] = (),
    data_dir: Path | None,
    swarm_key: Path | None = None,
    allow_peer: tuple[str, ...] = (),
    deny_peer: tuple[str, ...] = (),
    as_json: bool,
    until_stdin_closes: bool,
) -> NodeOptions:
    """The options over the config file's tables."""
    key = None if swarm_key is None else read_swarm_key(swarm_key)
    join, key = unfold(addrs, key)
    http_config = replace(base.http, port_is_default=base.http.port == HttpConfig().port)
    if http is not None:
        http_config = replace(http_config, host=http.host, port=http.port, port_is_default=False)
    config = Config(
        routing=_set(base.routing, policy=policy),
        anti_entropy=_set(base.anti_entropy, poll_interval_s=poll_interval),
        push_back=base.push_back,
        request=base.request,
        overlay=_set(
            base.overlay,
            listen=listen or None,
            announce=announce or None,
            upnp=upnp,
            join=join or None,
            allow_peers=allow_peer or None,
            deny_peers=deny_peer or None,
        ),
        engine=_set(
            base.engine,
            kind=engine,
            url=engine_url,
            python=engine_python,
            args=engine_args,
            model=model,
            page_size=page_size,
        ),
        http=_set(
            http_config,
            allow_overrides=allow_overrides,
            api_key=read_api_key(api_key_file) if api_key_file else api_key or None,
            insecure=insecure,
            allowed_hosts=allow_host or None,
        ),
    )
    if config.routing.policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise CommandError(f"[routing] policy: there is no '{config.routing.policy}'; known are {known}")
    return NodeOptions(
        config=config,
        data_dir=data_dir,
        serves_http=http is not None,
        swarm_key=key,
        api_key_file=api_key_file,
        swarm_key_file=swarm_key,
        as_json=as_json,
        until_stdin_closes=until_stdin_closes,
    )


def _set(section: Section, **values: object) -> Section:
    """The section with those of the values that were given."""
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    try:
        return replace(section, **given)
    except ValueError as error:  # an option that does not go with what the file says
        raise CommandError(str(error)) from None


addrs_argument = click.argument("addrs", nargs=-1, metavar="[ADDR|INVITE]...", callback=checked(parse_whom))

_DEFAULTS = Config()

_COMMON: list[Callable[..., Any]] = [
    click.option(
        "--listen",
        multiple=True,
        metavar="MULTIADDR",
        callback=checked(parse_listen),
        help=f"Where peers reach this node; may be repeated.  [default: {_DEFAULTS.overlay.listen[0]}]",
    ),
    click.option(
        "--announce",
        multiple=True,
        metavar="MULTIADDR",
        callback=checked(parse_announce),
        help="What others are told to dial, where that is a forwarded port or a proxy; may be repeated."
        "  [default: where it listens]",
    ),
    click.option(
        "--upnp/--no-upnp",
        default=None,
        help="Have the router forward the port that this node listens on, and announce its address.",
    ),
    swarm_key_option,
    click.option(
        "--allow-peer",
        multiple=True,
        metavar="PEER_ID",
        help="Have to do with this peer, and with no other that is not allowed; may be repeated.",
    ),
    click.option(
        "--deny-peer",
        multiple=True,
        metavar="PEER_ID",
        help="Have nothing to do with this peer; may be repeated.",
    ),
    config_option,
]


def _data_dir_option(default: str) -> Callable[..., Any]:
    return click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help=f"Identity and known peers; locked.  [default: {default}]",
    )


def _http_option(help_text: str) -> Callable[..., Any]:
    return click.option("--http", metavar="HOST:PORT", callback=checked(parse_host_port), help=help_text)


_NO_ENGINE: list[Callable[..., Any]] = [
    _data_dir_option("one for a bootstrap peer"),
    _http_option("Where `peerinfer status`, `peers` and `invite` ask this peer (--api).  [default: nowhere]"),
]

_ENGINE: list[Callable[..., Any]] = [
    _data_dir_option("one per HTTP port"),
    _http_option(
        f"Where clients reach this node.  [default: {_DEFAULTS.http.host}:{_DEFAULTS.http.port},"
        " or the next free port]"
    ),
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="SGLang, llama.cpp on the CPU (embedded), or no model at all (simulated); auto is SGLang where"
        f" it is installed and there is a GPU, else embedded.  [default: {_DEFAULTS.engine.kind}]",
    ),
    click.option(
        "--engine-url", metavar="URL", help="Serve through a server that runs: SGLang, vLLM, any OpenAI one."
    ),
    click.option(
        "--engine-python", metavar="PATH", help="The Python that has SGLang.  [default: peerinfer's own]"
    ),
    click.option(
        "--model",
        metavar="NAME_OR_PATH",
        help="A directory or a hub's id for SGLang, a GGUF file for llama.cpp."
        "  [default: SmolLM2-135M-Instruct]",
    ),
    click.option(
        "--policy",
        type=click.Choice(tuple(POLICIES)),
        help=f"How a target is chosen.  [default: {_DEFAULTS.routing.policy}]",
    ),
    click.option(
        "--poll-interval",
        type=click.FloatRange(*RANGES["poll_interval_s"]),
        metavar="SECONDS",
        help="Between two snapshots of what is cached here."
        f"  [default: {_DEFAULTS.anti_entropy.poll_interval_s}]",
    ),
    click.option(
        "--page-size",
        type=click.IntRange(*PAGE_SIZES),
        metavar="TOKENS",
        help=f"Tokens per cache page; the same on all nodes.  [default: {_DEFAULTS.engine.page_size}]",
    ),
    click.option(
        "--allow-overrides/--no-allow-overrides",
        default=None,
        help="Let requests choose policy and target by header.",
    ),
]

_ACCESS: list[Callable[..., Any]] = [
    click.option(
        "--api-key-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The key that clients have to show is the first line of this file, which only you can read.",
    ),
    click.option(
        "--api-key",
        envvar="PEERINFER_API_KEY",
        show_envvar=True,
        metavar="KEY",
        help="The key itself; everybody on this machine sees it in `ps`, unless it is in the variable.",
    ),
    click.option(
        "--insecure/--no-insecure",
        default=None,
        help="Let --http bind an address that other machines reach, without a key.",
    ),
    click.option(
        "--allow-host",
        multiple=True,
        metavar="NAME",
        help="Another name by which clients reach this node's HTTP; may be repeated.",
    ),
]

_OUTPUT: list[Callable[..., Any]] = [
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object once it is up; all else to stderr."
    ),
    click.option(
        "--until-stdin-closes",
        is_flag=True,
        help="Stop when stdin ends: for programs that start nodes and may be killed.",
    ),
]
