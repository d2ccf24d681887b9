"""`peerinfer model`: bring the default model here, and see which models there are.

`serve` and `demo` use the same functions: a node that finds no model offers to fetch it, the demo fetches it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from peerinfer.cli.errors import CommandError, FailedError
from peerinfer.cli.output import plain_console


@click.group()
def model() -> None:
    """The model files on this machine."""


@model.command()
def fetch() -> None:
    """Bring the default model (SmolLM2-135M-Instruct, 98 MB) here, once."""
    click.echo(fetch_with_progress(plain_console(stderr=True)))


@model.command()
def path() -> None:
    """Print where the default model is, or will be."""
    from peerinfer.engine.model_store import default_model_path

    click.echo(default_model_path())


@model.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def list_models(as_json: bool) -> None:
    """The models that are here."""
    from peerinfer.engine.model_store import models_dir, served_name

    files = sorted(models_dir().glob("*.gguf"))
    found = [{"name": served_name(file), "path": str(file), "bytes": file.stat().st_size} for file in files]
    if as_json:
        click.echo(json.dumps({"models": found}))
        return
    for entry in found:
        click.echo(f"{entry['name']}  {int(str(entry['bytes'])) / 1e6:.0f} MB  {entry['path']}")
    if not found:
        click.echo(f"no models in {models_dir()}: run `peerinfer model fetch`", err=True)


def fetch_with_progress(console: Console) -> Path:
    """The default model's path, after fetching it if need be. Raises `FailedError`."""
    from peerinfer.engine.model_store import fetch_default_model
    from peerinfer.node.ports import EngineError

    with console.status("") as status:
        try:
            return fetch_default_model(_progress(console, status.update))
        except EngineError as error:
            raise FailedError(str(error)) from None


def _progress(console: Console, show: Callable[[str], None]) -> Callable[[str, float], None]:
    """Each step is said once; its share done moves on the terminal."""
    said = ""

    def progress(step: str, share: float) -> None:
        nonlocal said
        if step != said:
            console.print(step)
            said = step
        show(f"{step}: {share:.0%}" if 0 < share < 1 else step)

    return progress


def find_model(named: str | None) -> Path:
    """The file of a model that is named, by path or by the default's name, or of the default.

    The default one that is not here yet is fetched if whoever sits at the terminal agrees.

    Raises:
        CommandError: there is no such model; the message says what to do.
    """
    from peerinfer.engine.model_store import DEFAULT_MODEL, default_model_path

    if named and named != DEFAULT_MODEL:
        file = Path(named).expanduser()
        if not file.is_file():
            raise CommandError(f"--model: there is no file {named}; give a GGUF file, or leave --model out")
        return file
    default = default_model_path()
    if default.exists():
        return default
    if sys.stdin.isatty() and sys.stderr.isatty():
        question = f"The default model, {DEFAULT_MODEL}, is not here yet. Fetch it now (98 MB)?"
        if click.confirm(question, default=True, err=True):
            return fetch_with_progress(plain_console(stderr=True))
    raise CommandError(
        "the default model is not here yet: run `peerinfer model fetch`, give --model FILE.gguf, "
        "or try --engine simulated"
    )
