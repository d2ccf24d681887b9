"""The demo's plan: two passes that differ in nothing but their prefixes' first digits."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from peerinfer.cli.demo_texts import TOPICS
from peerinfer.cli.errors import CommandError
from peerinfer.cli.workload import Block, load_mmlu, plan


def test_both_passes_ask_the_same_with_fresh_prefixes() -> None:
    blocks = plan(TOPICS, requests=30, nodes=4, seed=1)
    passes = {
        routed: [chat for b in blocks if b.routed is routed for chat in b.chats] for routed in (True, False)
    }
    assert len(passes[True]) == len(passes[False]) == 30
    for on, off in zip(passes[True], passes[False], strict=True):
        assert (on.topic, on.entry, on.messages[1]) == (off.topic, off.entry, off.messages[1])
        assert on.messages[0]["content"][:10] != off.messages[0]["content"][:10]
        assert on.messages[0]["content"][10:] == off.messages[0]["content"][10:]


def test_the_pass_that_goes_first_alternates() -> None:
    blocks = plan(TOPICS, requests=30, nodes=4, seed=1)
    assert [block.routed for block in blocks] == [True, False, False, True, True, False]


def test_requests_go_to_the_nodes_in_turn() -> None:
    blocks = plan(TOPICS, requests=23, nodes=3, seed=1)
    entries = [chat.entry for block in blocks if block.routed for chat in block.chats]
    assert entries == [number % 3 for number in range(23)]


def test_each_prefix_is_asked_about_five_times_and_is_never_used_again() -> None:
    """More requests than there are texts: a text returns with other digits, so it is another prefix."""
    blocks = plan(TOPICS, requests=70, nodes=4, seed=1)
    prefixes = [chat.messages[0]["content"] for block in blocks for chat in block.chats]
    assert len(set(prefixes)) == 2 * 70 // 5
    assert {prefixes.count(prefix) for prefix in prefixes} == {5}


def test_the_same_seed_gives_the_same_plan() -> None:
    def planned(seed: int) -> list[Block]:
        return plan(TOPICS, requests=12, nodes=4, seed=seed)

    assert planned(1) == planned(1)
    assert planned(1) != planned(2)


def test_the_texts_are_long_and_start_differently() -> None:
    """About four characters make a token: 400 to 500 of them is what the demo promises."""
    assert len({topic.text[:20] for topic in TOPICS}) == len(TOPICS)
    assert all(1500 < len(topic.text) < 2000 and len(topic.questions) >= 5 for topic in TOPICS)


COLUMNS = ["question", "choice0", "choice1", "choice2", "choice3", "answer"]


def write_subject(root: Path, name: str, *, question: str, columns: list[str] = COLUMNS) -> None:
    for part, count in (("dev", 5), ("test", 7)):
        (root / part).mkdir(parents=True, exist_ok=True)
        with (root / part / f"{name}_{part}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(columns)
            rows.writerows(
                [f"{question} {part} {i}?", "w", "x", "y", "z", i % 4][: len(columns)] for i in range(count)
            )


def test_mmlu_subjects_become_5_shot_topics(tmp_path: Path) -> None:
    for name in ("long_one", "long_two"):
        write_subject(tmp_path / "mmlu", name, question="Why " + "so " * 150)
    write_subject(tmp_path / "mmlu", "short", question="Why")
    topics = load_mmlu(tmp_path, count=5, seed=1)
    assert {topic.name for topic in topics} == {"long_one", "long_two"}
    text = topics[0].text
    assert text.startswith("The following are multiple choice questions (with answers) about long ")
    assert [line for line in text.splitlines() if line.startswith("Answer:")] == [
        f"Answer: {letter}" for letter in "ABCDA"
    ]
    assert topics[0].questions[0].endswith("test 0?\nA. w\nB. x\nC. y\nD. z\nAnswer:")
    assert len(topics[0].questions) == 5
    assert topics[0].max_tokens == 1


def test_data_that_is_no_mmlu_is_told(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="should hold MMLU's"):
        load_mmlu(tmp_path, count=1, seed=1)
    write_subject(tmp_path, "cut", question="Why", columns=COLUMNS[:4])
    with pytest.raises(CommandError, match="lacks the columns"):
        load_mmlu(tmp_path, count=1, seed=1)
    write_subject(tmp_path, "cut", question="Why")
    with pytest.raises(CommandError, match="no subject"):
        load_mmlu(tmp_path, count=1, seed=1)
