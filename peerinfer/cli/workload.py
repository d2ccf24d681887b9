"""What the demo asks: chats that share long prefixes, in blocks with and without routing.

Both passes ask the same questions about the same texts at the same nodes in the same order. They differ in
a few digits at the very beginning of each text, so that neither finds the other's pages in a cache. They are
cut into blocks that take turns, and the one that goes first alternates: a machine that is slower for
a while slows both.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peerinfer.cli.demo_texts import Topic
from peerinfer.cli.errors import CommandError
from peerinfer.sim.workloads.mmlu_texts import mmlu_root, read_subject, subject_names

QUESTIONS_PER_PREFIX = 5
PREFIXES_PER_BLOCK = 2
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
    root = mmlu_root(directory)
    if root is None:
        raise CommandError(f"--data: {directory} has no dev/*_dev.csv; it should hold MMLU's dev/ and test/")
    names = subject_names(root)
    random.Random(seed).shuffle(names)
    topics = []
    for name in names:
        try:
            subject = read_subject(root, name)
        except ValueError as error:
            raise CommandError(f"--data: {error}") from None
        text = "\n\n".join([subject.header, *subject.shots])
        if not MMLU_CHARS[0] <= len(text) <= MMLU_CHARS[1]:
            continue
        questions = subject.questions[:QUESTIONS_PER_PREFIX]
        topics.append(Topic(name=name, text=text, questions=questions, max_tokens=1))
        if len(topics) == count:
            break
    if not topics:
        raise CommandError(f"--data: {directory} has no subject whose 5-shot header has a suitable length")
    return topics
