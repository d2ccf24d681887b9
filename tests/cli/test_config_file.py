"""`--config FILE.toml`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from peerinfer.cli.config_file import base_config, config_option
from peerinfer.cli.errors import OneLineGroup


@click.group(cls=OneLineGroup)
def tool() -> None:
    """A command line with what node commands have in common."""


@tool.command()
@click.argument("addrs", nargs=-1)
@click.option("--poll-interval", type=float, default=0.5)
@click.option("--listen", multiple=True)
@click.option("--json", "as_json", is_flag=True)
@config_option
@click.pass_context
def node(
    context: click.Context,
    addrs: tuple[str, ...],
    poll_interval: float,
    listen: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print what arrived."""
    config = base_config(context)
    if as_json:
        click.echo("as JSON")
    click.echo((addrs, poll_interval, listen, config.routing.policy, config.routing.forward_margin_s))


def run(tmp_path: Path, content: str, *arguments: str) -> Result:
    file = tmp_path / "node.toml"
    file.write_text(content)
    return CliRunner().invoke(tool, ["node", "--config", str(file), *arguments])


def test_options_and_tables_come_from_the_file_and_the_command_line_wins(tmp_path: Path) -> None:
    content = """
        addrs = ["a", "b"]
        poll-interval = 2
        listen = ["x"]
        [routing]
        policy = "local"
        forward_margin_s = 1
    """
    assert run(tmp_path, content).stdout == "(('a', 'b'), 2.0, ('x',), 'local', 1.0)\n"
    assert run(tmp_path, content, "--poll-interval", "3", "c").stdout.startswith("(('c',), 3.0, ('x',)")


def test_an_option_has_the_name_of_the_command_line_not_of_its_variable(tmp_path: Path) -> None:
    assert run(tmp_path, "json = true").stdout.startswith("as JSON\n")
    assert "unknown option 'as-json'" in run(tmp_path, "as_json = true").stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            "poll-intervall = 1",
            "unknown option 'poll-intervall'; known are addrs, json, listen, poll-interval",
        ),
        ("[rooting]", "unknown table [rooting]; known are routing,"),
        ("[routing]\npolice = 'x'", "[routing] has no 'police'; it has policy,"),
        ("[routing]\npolicy = 1", "[routing] policy: 1 is not str"),
        ("[request]\nattempts_max = 1.5", "[request] attempts_max: 1.5 is not int"),
        ("[request]\nattempts_max = true", "[request] attempts_max: True is not int"),
        ("[overlay]\nlisten = 'x'", "[overlay] listen: 'x' is not a list of strings"),
        ("[overlay]\nlisten = [1]", "[overlay] listen: [1] is not a list of strings"),
        ("[request]\nattempts_max = 0", "[request] attempts_max is 0; allowed is 1 or more"),
        (
            "[anti_entropy]\nsnapshot_bytes_max = 262145",
            "[anti_entropy] snapshot_bytes_max is 262145; allowed is 4096 to 262144",
        ),
        ("[http]\nbody_bytes_max = 0", "[http] body_bytes_max is 0; allowed is 1 to 16777216"),
        ("[routing]\nforward_margin_s = nan", "[routing] forward_margin_s is nan; allowed is 0 or more"),
        ("poll-interval = 'soon'", "'soon' is not a valid float"),
        ("=", "Invalid statement"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(tmp_path: Path, content: str, reason: str) -> None:
    result = run(tmp_path, content)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert reason in result.stderr


def test_a_file_that_is_missing_is_status_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(tool, ["node", "--config", str(tmp_path / "none.toml")])
    assert result.exit_code == 2
    assert "does not exist" in result.stderr
