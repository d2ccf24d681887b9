"""`peerinfer demo`: a swarm on this machine, a workload, and what routing saves.

Real processes, real libp2p, and by default a real model. The same questions are asked with routing and
without, in one run (see workload.py).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import trio
from rich.console import Console
from rich.status import Status

from peerinfer.cli.demo_nodes import DemoNode, run_nodes
from peerinfer.cli.demo_table import (
    Row,
    make_row,
    print_header,
    print_row,
    print_summary,
    summarise,
    summary_json,
)
from peerinfer.cli.demo_texts import TOPICS
from peerinfer.cli.errors import INTERRUPTED, end_interrupted_line, run_async
from peerinfer.cli.model import fetch_with_progress
from peerinfer.cli.output import plain_console
from peerinfer.cli.stopping import signals_that_stop
from peerinfer.cli.workload import QUESTIONS_PER_PREFIX, Block, Chat, load_mmlu, plan

SEED = 7
REQUESTS = 30
WARM_UP = ({"role": "user", "content": "Say hello."},)


@click.command()
@click.option("--peers", type=click.IntRange(2, 16), default=4, show_default=True, help="Nodes to start.")
@click.option(
    "--requests",
    type=click.IntRange(min=2),
    default=REQUESTS,
    show_default=True,
    help="Requests with routing; as many are sent without.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Ask 5-shot questions from MMLU's CSV files in this directory instead of the built-in texts.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "embedded", "simulated"]),
    default="embedded",
    show_default=True,
    help="The nodes' engine.",
)
@click.option("--exit", "exit_after", is_flag=True, help="End after the summary instead of on Ctrl-C.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object; all else goes to stderr.")
def demo(
    peers: int, requests: int, data: Path | None, engine: str, exit_after: bool, json_output: bool
) -> None:
    """Start a swarm on this machine, send it chats that share long prefixes, and show what routing saves.

    The table has a line per request: the node that it was sent to, the node that served it, how many of
    its prompt tokens were expected and found in a cache, and the time to the first token (TTFT). Then the
    same questions with routing switched off are set beside it, and the nodes keep running.
    """
    prefixes = -(-requests // QUESTIONS_PER_PREFIX)
    topics = list(TOPICS) if data is None else load_mmlu(data, count=prefixes, seed=SEED)
    blocks = plan(topics, requests=requests, nodes=peers, seed=SEED)
    console = plain_console(stderr=json_output)
    engine = (
        "embedded" if engine == "auto" else engine
    )  # an SGLang takes a whole GPU, and these are many nodes
    if engine == "embedded":
        fetch_with_progress(console)
    show = Demonstration(blocks, console=console)
    with tempfile.TemporaryDirectory(prefix="peerinfer-demo-") as directory:
        run_async(show.run, peers, ["--engine", engine], Path(directory), exit_after, json_output)
    raise SystemExit(0 if show.finished else INTERRUPTED)


class Demonstration:
    """One run of the demo, from the first process to the last line."""

    def __init__(self, blocks: Sequence[Block], *, console: Console) -> None:
        self._blocks = blocks
        self._console = console
        self._nodes: list[DemoNode] = []
        self._rows: list[Row] = []
        self.finished = False
        """The summary was shown; a signal before that is an interruption."""

    async def run(
        self, count: int, options: Sequence[str], directory: Path, exit_after: bool, json_output: bool
    ) -> None:
        """Start the nodes, ask, sum up, and keep them running until a signal comes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_signal, nursery.cancel_scope)
            self._console.print(f"Starting {count} nodes on this machine.")
            with self._console.status("") as status:
                async with run_nodes(
                    count, options, directory=directory, say=self._say, doing=status.update
                ) as self._nodes:
                    await self._ask_all(status)
                    self._sum_up()
                    if json_output:
                        click.echo(json.dumps(self._as_json()))
                    self.finished = True
                    status.stop()
                    if not exit_after:
                        self._say_where()
                        await trio.sleep_forever()
            nursery.cancel_scope.cancel()

    def _say(self, text: str) -> None:
        self._console.print(f"  {text}")

    async def _ask_all(self, status: Status) -> None:
        """Send the whole plan, one request after the other."""
        model = self._nodes[0].model
        status.update("warming up")
        for node in self._nodes:
            await node.client.chat(WARM_UP, model=model, max_tokens=1, policy="local")
        self._console.print(f"\nAll are ready with {model}.")
        self._console.print("Asking each question twice, with routing and without.\n")
        print_header(self._console)
        total = sum(len(block.chats) for block in self._blocks)
        for block in self._blocks:
            for chat in block.chats:
                status.update(f"{len(self._rows) + 1} of {total}: asking about {chat.topic}")
                row = await self._ask(chat, model=model, routed=block.routed)
                self._rows.append(row)
                print_row(self._console, row)

    async def _ask(self, chat: Chat, *, model: str, routed: bool) -> Row:
        entry = self._nodes[chat.entry]
        answer = await entry.client.chat(
            chat.messages,
            model=model,
            max_tokens=chat.max_tokens,
            policy=None if routed else "local",
        )
        served_by = next((node.name for node in self._nodes if node.peer_id == answer.served_by), "?")
        return make_row(
            answer,
            number=len(self._rows) + 1,
            routed=routed,
            topic=chat.topic,
            entry=entry.name,
            served_by=served_by,
        )

    def _sum_up(self) -> None:
        self._console.print()
        print_summary(
            self._console,
            summarise([row for row in self._rows if row.routed]),
            summarise([row for row in self._rows if not row.routed]),
        )

    def _say_where(self) -> None:
        self._console.print("\nThe nodes keep running. Each is an OpenAI endpoint:")
        for node in self._nodes:
            self._say(f"{node.name}  {node.url}/v1")
        self._console.print("Ctrl-C stops them.")

    def _as_json(self) -> dict[str, object]:
        nodes = [{"name": node.name, "peer_id": node.peer_id, "http": node.url} for node in self._nodes]
        return {"nodes": nodes, **summary_json(self._rows)}


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(*signals_that_stop()) as signals:
        async for _ in signals:
            end_interrupted_line()
            scope.cancel()
            return
