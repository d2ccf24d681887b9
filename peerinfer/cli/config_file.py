"""`--config FILE.toml`: the same options as on the command line, and every number of `peerinfer.config`.

At the top of the file stand options under their own names (`http = "127.0.0.1:8000"`); tables such as
`[routing]` set the fields of the dataclasses in `peerinfer/config.py`, where each is explained. The
command line wins over the file. A name nobody knows is an error: a typo must not be a silent default.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from peerinfer.cli.errors import CommandError
from peerinfer.config import Config

SECTIONS = {field.name: field for field in dataclasses.fields(Config)}
BASE_CONFIG = "peerinfer.base_config"


def config_option(command: Any) -> Any:
    """Add `--config`; its values become defaults, and its tables the context's base `Config`."""
    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_load,
        help="Options and settings from a TOML file; the command line wins.",
    )(command)


def base_config(context: click.Context) -> Config:
    """The `Config` that the file describes; the defaults where there is none."""
    config = context.meta.get(BASE_CONFIG, Config())
    assert isinstance(config, Config)
    return config


def _is_shown(option: click.Parameter) -> bool:
    return not getattr(option, "hidden", False)


def _own_name(param: click.Parameter) -> str:
    """What it is called on the command line, which its variable need not be: `--json`."""
    return max(param.opts, key=len).lstrip("-").replace("_", "-")


def _load(context: click.Context, _param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandError(f"{path}: {error}") from None
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    options = {name.replace("_", "-"): value for name, value in content.items() if name not in tables}
    known = {_own_name(param): param for param in context.command.params if param.name != "config"}
    for name in sorted(options.keys() - known.keys()):
        options_known = ", ".join(sorted(name for name, option in known.items() if _is_shown(option)))
        raise CommandError(f"{path}: unknown option '{name}'; known are {options_known}")
    values = {str(known[name].name): value for name, value in options.items()}
    context.default_map = {**(context.default_map or {}), **values}
    context.meta[BASE_CONFIG] = apply_tables(tables, where=str(path))


def apply_tables(tables: Mapping[str, Mapping[str, object]], *, where: str) -> Config:
    """A `Config` with these fields set. Raises `CommandError` that names the field."""
    sections = {}
    for name, table in tables.items():
        if name not in SECTIONS:
            raise CommandError(f"{where}: unknown table [{name}]; known are {', '.join(SECTIONS)}")
        section = getattr(Config(), name)
        kinds = typing.get_type_hints(type(section))
        values = {}
        for key, value in table.items():
            if key not in kinds:
                raise CommandError(f"{where}: [{name}] has no '{key}'; it has {', '.join(kinds)}")
            values[key] = _convert(value, kinds[key], where=f"{where}: [{name}] {key}")
        try:
            sections[name] = dataclasses.replace(section, **values)
        except ValueError as error:
            raise CommandError(f"{where}: [{name}] {error}") from None
    return dataclasses.replace(Config(), **sections)


def _convert(value: object, kind: object, *, where: str) -> object:
    """The value as its field wants it; TOML's whole numbers are welcome where fractions are."""
    if kind is float and type(value) is int:
        return float(value)
    if kind in (int, float, str, bool) and type(value) is kind:
        return value
    is_texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind == tuple[str, ...] and isinstance(value, list) and is_texts:
        return tuple(value)
    wanted = "a list of strings" if kind == tuple[str, ...] else getattr(kind, "__name__", str(kind))
    raise CommandError(f"{where}: {value!r} is not {wanted}")
