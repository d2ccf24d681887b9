"""The paper's workload (§4): MMLU 5-shot, one output token, in a random order, one request at a time.

A prompt is a subject's header and five answered questions, which all prompts of the subject share, and one
question; every question is asked once. `skewed` is its 80/20 variant: as many requests, 80 % of them about
20 % of the subjects, so popular questions come again. The paper's do, too: under skew it finds 91.4 % cached,
and only five sixths of a prompt are common to its subject.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from peerinfer.sim.workloads.corpus import Corpus
from peerinfer.sim.workloads.entries import Entry, entries
from peerinfer.sim.workloads.workload import Arrival, Workload

HOT_REQUESTS = 0.8  # paper §4: "80% of requests come from 20% of topics"
HOT_SUBJECTS = 0.2  # paper §4
OUTPUT_TOKENS = 1  # paper §4

Schedule = list[tuple[int, int]]
"""(subject, question) of each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MmluSpec:
    """Which of the paper's workloads."""

    nodes: int = 4  # paper §4
    seed: int = 0
    requests: int | None = None
    """The first so many; None: as many as there are questions."""
    skewed: bool = False
    header: bool = True
    """Whether prompts open with MMLU's usual line, which is common to all up to the subject's name."""
    entry: Entry = "round-robin"
    subjects: int | None = None
    """So many subjects, drawn by the seed; None: all."""

    def build(self, corpus: Corpus) -> Workload:
        """The workload over a corpus."""
        schedule = make_schedule(self, [len(subject.questions) for subject in corpus.subjects])
        prefixes = [
            (*subject.header, *subject.examples) if self.header else subject.examples
            for subject in corpus.subjects
        ]

        def arrivals() -> Iterator[Arrival]:
            turns = entries(self.entry, nodes=self.nodes, seed=self.seed)
            for (subject, question), entry in zip(schedule, turns, strict=False):
                yield Arrival(
                    entry=entry,
                    topic=subject,
                    tokens=prefixes[subject] + corpus.subjects[subject].questions[question],
                    max_tokens=OUTPUT_TOKENS,
                )

        return Workload(
            topics=tuple(subject.name for subject in corpus.subjects),
            count=len(schedule),
            digest=corpus.digest,
            arrivals=arrivals,
        )


def make_schedule(spec: MmluSpec, counts: Sequence[int]) -> Schedule:
    """What is asked in which order, of subjects with so many questions each."""
    rng = random.Random(f"mmlu/{spec.seed}")
    questions = [[(subject, number) for number in range(count)] for subject, count in enumerate(counts)]
    if spec.subjects is not None:
        questions = rng.sample(questions, min(spec.subjects, len(questions)))
    if spec.skewed:
        return _skewed(questions, rng)[: spec.requests]
    schedule = list(chain.from_iterable(questions))
    rng.shuffle(schedule)
    return schedule[: spec.requests]


def _skewed(questions: list[Schedule], rng: random.Random) -> Schedule:
    """As many requests as there are questions, each drawn from all hot or all cold ones, with replacement."""
    subjects = rng.sample(questions, len(questions))
    split = max(1, round(HOT_SUBJECTS * len(subjects)))
    hot = list(chain.from_iterable(subjects[:split]))
    cold = list(chain.from_iterable(subjects[split:])) or hot
    count = sum(map(len, questions))
    return [rng.choice(hot if rng.random() < HOT_REQUESTS else cold) for _ in range(count)]
