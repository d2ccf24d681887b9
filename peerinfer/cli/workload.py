"""What the demo asks: chats that share long prefixes, in blocks with and without routing.

Both passes ask the same questions about the same texts at the same nodes in the same order. They differ in
a few digits at the very beginning of each text, so that neither finds the other's pages in a cache. They are
cut into blocks that take turns, and the one that goes first alternates: a machine that is slower for
a while slows both.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peerinfer.cli.demo_texts import Topic
from peerinfer.cli.errors import CommandError

QUESTIONS_PER_PREFIX = 5
PREFIXES_PER_BLOCK = 2
SHOTS = 5  # paper §4
MMLU_CHARS = (1500, 3500)
"""A 5-shot header outside of this is too short to show anything or too long for a small context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One question to one node."""

    topic: str
    entry: int
    """Index of the node it is sent to."""
    messages: tuple[dict[str, str], ...]
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Chats that are sent one after the other, with routing or without."""

    routed: bool
    chats: tuple[Chat, ...]


def plan(topics: Sequence[Topic], *, requests: int, nodes: int, seed: int) -> list[Block]:
    """Blocks for two passes of so many requests each. The same arguments give the same plan."""
    rng = random.Random(seed)
    asked = [divmod(number, QUESTIONS_PER_PREFIX) for number in range(requests)]  # (prefix, question)
    per_block = PREFIXES_PER_BLOCK * QUESTIONS_PER_PREFIX
    blocks = []
    for number in range(_ceil(requests, per_block)):
        part = asked[number * per_block : (number + 1) * per_block]
        rng.shuffle(part)
        both = [
            Block(
                routed=routed,
                chats=_chats(topics, part, nonces=_nonces(part, rng), nodes=nodes, turn=number * per_block),
            )
            for routed in (True, False)
        ]
        blocks += both if number % 2 == 0 else both[::-1]
    return blocks


def _ceil(count: int, size: int) -> int:
    return -(-count // size)


def _nonces(part: Sequence[tuple[int, int]], rng: random.Random) -> dict[int, str]:
    return {prefix: rng.randbytes(4).hex() for prefix in sorted({prefix for prefix, _ in part})}


def _chats(
    topics: Sequence[Topic],
    part: Sequence[tuple[int, int]],
    *,
    nonces: dict[int, str],
    nodes: int,
    turn: int,
) -> tuple[Chat, ...]:
    chats = []
    for index, (prefix, question) in enumerate(part):
        topic = topics[prefix % len(topics)]
        # The digits come first: a match ends at the first page that differs.
        system = {"role": "system", "content": f"[{nonces[prefix]}] {topic.text}"}
        user = {"role": "user", "content": topic.questions[question % len(topic.questions)]}
        chats.append(
            Chat(
                topic=topic.name,
                entry=(turn + index) % nodes,
                messages=(system, user),
                max_tokens=topic.max_tokens,
            )
        )
    return tuple(chats)


def load_mmlu(directory: Path, *, count: int, seed: int) -> list[Topic]:
    """Topics from MMLU's CSV files, asked 5-shot as in paper §4. Raises `CommandError`.

    `directory` holds `dev/*_dev.csv` and `test/*_test.csv`, or a folder `mmlu` that does, with the columns
    `question,choice0..choice3,answer`.
    """
    root = directory / "mmlu" if (directory / "mmlu").is_dir() else directory
    files = sorted((root / "dev").glob("*_dev.csv"))
    if not files:
        raise CommandError(f"--data: {directory} has no dev/*_dev.csv; it should hold MMLU's dev/ and test/")
    random.Random(seed).shuffle(files)
    topics = []
    for file in files:
        name = file.name.removesuffix("_dev.csv")
        subject = name.replace("_", " ")
        shots = [_ask(row) + f" {'ABCD'[int(row['answer'])]}" for row in _rows(file)[:SHOTS]]
        header = f"The following are multiple choice questions (with answers) about {subject}."
        text = "\n\n".join([header, *shots])
        if not MMLU_CHARS[0] <= len(text) <= MMLU_CHARS[1]:
            continue
        test = _rows(root / "test" / f"{name}_test.csv")[:QUESTIONS_PER_PREFIX]
        topics.append(Topic(name=name, text=text, questions=tuple(map(_ask, test)), max_tokens=1))
        if len(topics) == count:
            break
    if not topics:
        raise CommandError(f"--data: {directory} has no subject whose 5-shot header has a suitable length")
    return topics


def _rows(file: Path) -> list[dict[str, str]]:
    columns = {"question", "choice0", "choice1", "choice2", "choice3", "answer"}
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"--data: {file}: {error}") from None
    if not rows or not columns <= rows[0].keys() or any(row["answer"] not in set("0123") for row in rows):
        raise CommandError(f"--data: {file} lacks the columns question, choice0 to choice3, answer (0 to 3)")
    return rows


def _ask(row: dict[str, str]) -> str:
    choices = "\n".join(f"{'ABCD'[index]}. {row[f'choice{index}']}" for index in range(4))
    return f"{row['question'].strip()}\n{choices}\nAnswer:"
