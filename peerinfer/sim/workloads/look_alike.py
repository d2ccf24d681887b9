"""A corpus of MMLU's shape without its texts, for machines that do not have them.

57 subjects with as many questions as MMLU's, whose first tokens are common to all (MMLU's header), whose
examples are as long and as uneven, and whose questions are a sixth of a prompt.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import overload

from peerinfer.sim.workloads.corpus import Corpus, Subject
from peerinfer.sim.workloads.draw import draw_tokens
from peerinfer.sim.workloads.workload import Tokens

_COUNTS: tuple[int, ...] = (
    *(1534, 895, 783, 612, 545, 390, 378, 346, 324, 311, 310, 306, 282, 272, 270, 265, 245, 238, 237, 235),
    *(234, 223, 216, 204, 203, 201, 198, 193, 173, 171, 166, 165, 163, 152, 151, 145, 144, 135, 131, 126),
    *(121, 114, 112, 110, 108, 103, 102, *([100] * 10)),
)
"""Questions per subject: MMLU's own numbers, 14,042 in all."""
HEADER_TOKENS = 13  # MMLU's, without the subject's name
NAME_TOKENS = 4
EXAMPLES_TOKENS = (260, 1100)
"""The least and the most, log-uniform."""
QUESTION_TOKENS = (40, 200)


def look_alike() -> Corpus:
    """The corpus; always the same one."""
    rng = random.Random("look-alike")
    common = draw_tokens("header", HEADER_TOKENS)
    subjects = []
    for number, count in enumerate(_COUNTS):
        name = f"subject_{number + 1:02}"
        least, most = EXAMPLES_TOKENS
        subjects.append(
            Subject(
                name=name,
                header=(*common, *draw_tokens(f"name/{name}", NAME_TOKENS)),
                examples=draw_tokens(f"examples/{name}", round(least * (most / least) ** rng.random())),
                questions=_Questions(name, count),
            )
        )
    digest = hashlib.blake2b(repr((_COUNTS, EXAMPLES_TOKENS, QUESTION_TOKENS)).encode(), digest_size=8)
    return Corpus(subjects=tuple(subjects), digest=f"look-alike-{digest.hexdigest()}")


class _Questions(Sequence[Tokens]):
    """Questions that are made when they are asked: all of them would be 1.7 million tokens."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Tokens: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tokens]: ...
    def __getitem__(self, index: int | slice) -> Tokens | Sequence[Tokens]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._count))]
        label = f"question/{self._name}/{range(self._count)[index]}"
        return draw_tokens(label, random.Random(label).randint(*QUESTION_TOKENS))
