"""The command `peerinfer`."""

from __future__ import annotations

import click

from peerinfer import __version__
from peerinfer.cli.bootstrap import bootstrap
from peerinfer.cli.calibrate import calibrate
from peerinfer.cli.demo import demo
from peerinfer.cli.errors import OneLineGroup
from peerinfer.cli.experiment import experiment
from peerinfer.cli.invite import invite
from peerinfer.cli.key import key
from peerinfer.cli.model import model
from peerinfer.cli.serve import join, serve
from peerinfer.cli.show import ask, peers, status
from peerinfer.cli.top import top
from peerinfer.cli.why import why


@click.group(
    cls=OneLineGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, message="peerinfer %(version)s")
def peerinfer() -> None:
    """A swarm of LLM servers in which every node is an OpenAI endpoint.

    Start the first node with `peerinfer serve`; it prints the `peerinfer join …` line for the others. Every
    request runs where its prefix is already cached, if that is faster than running it where it came in.
    """


_COMMANDS = (
    serve,
    join,
    bootstrap,
    invite,
    key,
    demo,
    experiment,
    calibrate,
    ask,
    status,
    peers,
    top,
    why,
    model,
)

for command in _COMMANDS:
    peerinfer.add_command(command)


def main() -> None:
    """Run the command line of this process, and leave with its status."""
    peerinfer(prog_name="peerinfer")
