"""MMLU as tokens, tokenised once and then kept in the user's cache directory.

Header, examples and question are tokenised apart and joined: the blank lines between them are where the
model's tokeniser cuts in any case, and a subject's five examples are the same tokens in all its prompts.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cbor2
import platformdirs

from peerinfer.sim.workloads.mmlu_texts import SubjectTexts, mmlu_root, read_subject, subject_names
from peerinfer.sim.workloads.tokenise import open_tokeniser
from peerinfer.sim.workloads.workload import Tokens

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One subject of a corpus."""

    name: str
    header: Tokens
    examples: Tokens
    questions: Sequence[Tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """All subjects, by name."""

    subjects: tuple[Subject, ...]
    digest: str
    """Of the texts and of the tokeniser."""


def load_corpus(data: Path, *, say: Callable[[str], None]) -> Corpus:
    """MMLU from a directory with `mmlu/dev` and `mmlu/test`. Raises `ValueError` if it is not there."""
    root = mmlu_root(data)
    if root is None:
        raise ValueError(f"{data} has no mmlu/dev/*_dev.csv")
    texts = [read_subject(root, name) for name in subject_names(root)]
    with open_tokeniser() as tokeniser:
        digest = _digest(tokeniser.name, texts)
        kept = _cache_dir() / f"mmlu-{digest}.cbor"
        subjects = _read(kept)
        if subjects is None:
            say(f"tokenising MMLU ({tokeniser.name}), once")
            subjects = tuple(_tokenised(each, tokeniser.tokens) for each in texts)
            _write(kept, subjects)
    return Corpus(subjects=subjects, digest=digest)


def _cache_dir() -> Path:
    named = os.environ.get("PEERINFER_CACHE")
    return Path(named or platformdirs.user_cache_dir("peerinfer")) / "tokens"


def _digest(tokeniser: str, texts: Iterable[SubjectTexts]) -> str:
    digest = hashlib.blake2b(f"{_FORMAT}/{tokeniser}".encode(), digest_size=8)
    for each in texts:
        for text in (each.name, each.header, *each.shots, *each.questions):
            digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def _tokenised(texts: SubjectTexts, tokens: Callable[[str], Tokens]) -> Subject:
    return Subject(
        name=texts.name,
        header=tokens(texts.header + "\n\n"),
        examples=tokens("".join(shot + "\n\n" for shot in texts.shots)),
        questions=[tokens(question) for question in texts.questions],
    )


def _write(file: Path, subjects: Sequence[Subject]) -> None:
    rows = [
        [each.name, _pack(each.header), _pack(each.examples), [_pack(tokens) for tokens in each.questions]]
        for each in subjects
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as half:
        half.write(cbor2.dumps(rows))
    Path(half.name).replace(file)


def _read(file: Path) -> tuple[Subject, ...] | None:
    try:
        rows = cbor2.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    return tuple(
        Subject(
            name=name,
            header=_unpack(header),
            examples=_unpack(examples),
            questions=[_unpack(tokens) for tokens in questions],
        )
        for name, header, examples, questions in rows
    )


def _pack(tokens: Tokens) -> bytes:
    return array("I", tokens).tobytes()


def _unpack(packed: bytes) -> Tokens:
    return tuple(array("I", packed))
