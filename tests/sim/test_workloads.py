"""Workloads: the same requests each time, of the shape that their description promises."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from peerinfer.sim.workloads.chats import ChatsSpec
from peerinfer.sim.workloads.corpus import Corpus, Subject, load_corpus
from peerinfer.sim.workloads.draw import draw_tokens
from peerinfer.sim.workloads.look_alike import HEADER_TOKENS, look_alike
from peerinfer.sim.workloads.mmlu import MmluSpec
from peerinfer.sim.workloads.mooncake import MooncakeSpec
from peerinfer.sim.workloads.shared_prefix import SharedPrefixSpec
from peerinfer.sim.workloads.tokenise import words_to_tokens
from peerinfer.sim.workloads.workload import Arrival, Workload


def listed(workload: Workload) -> list[Arrival]:
    arrivals = list(workload.arrivals())
    assert len(arrivals) == workload.count
    assert arrivals == list(workload.arrivals()), "a second walk gives other requests"
    return arrivals


def small_corpus(*, subjects: int = 10, questions: int = 20) -> Corpus:
    return Corpus(
        digest="small",
        subjects=tuple(
            Subject(
                name=f"subject {subject}",
                header=(7, 7, subject),
                examples=draw_tokens(f"examples {subject}", 50),
                questions=[draw_tokens(f"{subject}/{number}", 9) for number in range(questions)],
            )
            for subject in range(subjects)
        ),
    )


def test_mmlu_asks_every_question_once_at_the_nodes_in_turn() -> None:
    """Goal: paper §4's schedule. Method: count what a small corpus gives."""
    corpus = small_corpus()
    arrivals = listed(MmluSpec(seed=1).build(corpus))
    assert len({arrival.tokens for arrival in arrivals}) == 200
    assert [arrival.entry for arrival in arrivals] == [number % 4 for number in range(200)]
    assert {arrival.max_tokens for arrival in arrivals} == {1}
    assert all(arrival.at_s is None for arrival in arrivals), "one at a time"
    topics = [arrival.topic for arrival in arrivals]
    assert topics != sorted(topics), "in a random order"
    for arrival in arrivals:
        subject = corpus.subjects[arrival.topic]
        assert arrival.tokens[:53] == subject.header + subject.examples


def test_mmlu_without_its_header_shares_nothing_between_subjects() -> None:
    with_it = {arrival.tokens[:2] for arrival in listed(MmluSpec().build(small_corpus()))}
    without = {arrival.tokens[:2] for arrival in listed(MmluSpec(header=False).build(small_corpus()))}
    assert len(with_it) == 1
    assert len(without) == 10


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_skewed_mmlu_takes_80_percent_from_20_percent_of_the_subjects(seed: int) -> None:
    """Goal: paper §4's skew, as long as the uniform schedule. Method: count; 400 draws spread by 2 points."""
    arrivals = listed(MmluSpec(seed=seed, skewed=True).build(small_corpus(questions=40)))
    assert len(arrivals) == 400, "as many as the uniform schedule"
    by_topic = Counter(arrival.topic for arrival in arrivals)
    hot = sum(count for _, count in by_topic.most_common(2))
    assert hot / len(arrivals) == pytest.approx(0.8, abs=0.07)
    first = {arrival.topic for arrival in arrivals[:50]}
    assert len(first) > 2, "hot and cold subjects are mixed"


def test_skewed_mmlu_asks_hot_questions_again() -> None:
    """Goal: draws are with replacement, uniform over the questions of all hot subjects.

    Method: two hot subjects of ten, 320 requests for their 80 questions: hardly one is left out, and each is
    asked four times on average.
    """
    arrivals = listed(MmluSpec(seed=4, skewed=True).build(small_corpus(questions=40)))
    topics = Counter(arrival.topic for arrival in arrivals)
    hot = {topic for topic, _ in topics.most_common(2)}
    asked = Counter(arrival.tokens for arrival in arrivals if arrival.topic in hot)
    assert len(asked) > 70
    assert sum(asked.values()) / len(asked) == pytest.approx(4.0, abs=0.6)
    cold = Counter(arrival.tokens for arrival in arrivals if arrival.topic not in hot)
    assert sum(cold.values()) / len(cold) < 1.5


def test_hot_subjects_are_drawn_by_the_seed() -> None:
    def hot(seed: int) -> set[int]:
        arrivals = listed(MmluSpec(seed=seed, skewed=True).build(small_corpus(questions=40)))
        return {topic for topic, _ in Counter(arrival.topic for arrival in arrivals).most_common(2)}

    assert len({frozenset(hot(seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("subjects", [1, 2])
def test_skew_needs_no_fifth_subject(subjects: int) -> None:
    """Goal: short runs on a few subjects have a hot one all the same."""
    spec = MmluSpec(skewed=True, subjects=subjects)
    assert len(listed(spec.build(small_corpus()))) == 20 * subjects


def test_random_entries_reach_all_nodes_unevenly() -> None:
    entries = Counter(arrival.entry for arrival in listed(MmluSpec(entry="random").build(small_corpus())))
    assert set(entries) == {0, 1, 2, 3}
    assert len(set(entries.values())) > 1


def test_the_seed_decides_the_order() -> None:
    one, other = (listed(MmluSpec(seed=seed).build(small_corpus())) for seed in (1, 2))
    assert one != other
    assert {arrival.tokens for arrival in one} == {arrival.tokens for arrival in other}


def test_the_look_alike_has_the_shape_of_mmlu() -> None:
    """14,042 questions in 57 subjects, five sixths of a prompt shared within its subject (paper §5)."""
    corpus = look_alike()
    assert len(corpus.subjects) == 57
    assert sum(len(subject.questions) for subject in corpus.subjects) == 14042
    heads = {subject.header[:HEADER_TOKENS] for subject in corpus.subjects}
    assert len(heads) == 1
    assert len({subject.header[HEADER_TOKENS] for subject in corpus.subjects}) == 57
    arrivals = list(MmluSpec(requests=500).build(corpus).arrivals())
    shared = [len(corpus.subjects[a.topic].examples) / len(a.tokens) for a in arrivals]
    assert 0.75 < sum(shared) / len(shared) < 0.9
    assert corpus.digest == look_alike().digest


def test_a_corpus_is_tokenised_once_and_read_from_the_cache_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a data directory with two subjects; the second load must say nothing and give the same."""
    monkeypatch.setenv("PEERINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PEERINFER_MODELS", str(tmp_path / "no models"))
    for part, count in (("dev", 5), ("test", 3)):
        folder = tmp_path / "mmlu" / part
        folder.mkdir(parents=True)
        for name in ("zoo", "art_of_x"):
            rows = [f"Why {name} {number}?,a,b,c,d,{number % 4}\n" for number in range(count)]
            file = folder / f"{name}_{part}.csv"
            file.write_text("question,choice0,choice1,choice2,choice3,answer\n" + "".join(rows))
    said: list[str] = []
    first = load_corpus(tmp_path, say=said.append)
    assert said == ["tokenising MMLU (words), once"]
    again = load_corpus(tmp_path, say=said.append)
    assert len(said) == 1
    assert again == first
    assert [subject.name for subject in first.subjects] == ["art_of_x", "zoo"]
    text = "The following are multiple choice questions (with answers) about art of x.\n\n"
    assert first.subjects[0].header == words_to_tokens(text)
    assert len(first.subjects[0].questions) == 3
    with pytest.raises(ValueError, match="has no mmlu/dev"):
        load_corpus(tmp_path / "mmlu" / "dev", say=said.append)


def test_shared_prefixes_are_zipfs() -> None:
    spec = SharedPrefixSpec(requests=400, groups=8, prefix_tokens=20, ending_tokens=4, zipf=1.2)
    arrivals = listed(spec.build())
    counts = Counter(arrival.topic for arrival in arrivals)
    assert counts[0] > counts[3] > counts[7]
    assert len({arrival.tokens[:20] for arrival in arrivals}) == 8
    assert all(len(arrival.tokens) == 24 for arrival in arrivals)


def test_shared_prefixes_can_come_at_a_rate() -> None:
    arrivals = listed(SharedPrefixSpec(requests=300, requests_per_s=10.0).build())
    times = [arrival.at_s or 0.0 for arrival in arrivals]
    assert times == sorted(times)
    assert 20 < times[-1] < 45


def test_a_chats_prompt_contains_the_turns_before_it() -> None:
    spec = ChatsSpec(chats=6, turns=3, message_tokens=5, answer_tokens=7, system_tokens=30)
    arrivals = listed(spec.build())
    times = [arrival.at_s or 0.0 for arrival in arrivals]
    assert times == sorted(times)
    longest = [arrival.tokens for arrival in arrivals if len(arrival.tokens) == 30 + 3 * 5 + 2 * 7]
    assert len(longest) == 6
    for tokens in longest:
        turns = [each.tokens for each in arrivals if tokens[: len(each.tokens)] == each.tokens]
        assert [len(each) for each in sorted(turns, key=len)] == [35, 47, 59]


def test_a_sticky_user_stays_with_one_node() -> None:
    arrivals = listed(ChatsSpec(chats=8, turns=4, sticky=True).build())
    homes: dict[tuple[int, ...], set[int]] = {}
    for arrival in arrivals:
        homes.setdefault(arrival.tokens[400:460], set()).add(arrival.entry)
    assert all(len(nodes) == 1 for nodes in homes.values())


def test_mooncakes_equal_hashes_are_equal_prefixes(tmp_path: Path) -> None:
    """Method: three requests of a trace made by hand, two of which share two blocks."""
    trace = tmp_path / "mooncake" / "conversation.jsonl"
    trace.parent.mkdir()
    rows = [(0, 1100, 50, [0, 1, 2]), (2000, 1030, 9000, [0, 1, 3]), (3000, 200, 1, [4])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    trace.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    first, second, third = listed(MooncakeSpec(speed=2.0, output_tokens_max=64).build(tmp_path))
    assert [len(each.tokens) for each in (first, second, third)] == [1100, 1030, 200]
    assert first.tokens[:1024] == second.tokens[:1024]
    assert first.tokens[1024:1030] != second.tokens[1024:]
    assert third.tokens != first.tokens[:200]
    assert [each.at_s for each in (first, second, third)] == [0.0, 1.0, 1.5]
    assert [each.max_tokens for each in (first, second, third)] == [50, 64, 1]
    with pytest.raises(ValueError, match="synthetic"):
        MooncakeSpec(trace="synthetic").build(tmp_path)
