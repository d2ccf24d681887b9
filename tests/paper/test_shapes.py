"""The shapes of the paper's results, on shortened simulations of the production code in virtual time."""

from __future__ import annotations

from statistics import fmean

import pytest

from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.record import Record
from peerinfer.sim.experiments.settings import NO_ROUTING, PAPER_POLICY, Settings
from peerinfer.sim.experiments.simulate import simulate
from peerinfer.sim.experiments.summary import Summary, summarise
from peerinfer.sim.experiments.windows import subject_shares, zones
from peerinfer.sim.workloads.corpus import Corpus, Subject
from peerinfer.sim.workloads.draw import draw_tokens
from peerinfer.sim.workloads.look_alike import look_alike
from peerinfer.sim.workloads.mmlu import MmluSpec, make_schedule

REQUESTS = 120
HEADER_TOKENS = 11  # MMLU's, in the default model's tokens


def corpus(*, subjects: int = 10, examples: int = 240, questions: int = 100) -> Corpus:
    """MMLU in small: prompts of 300 tokens, five sixths of them shared within a subject."""
    common = draw_tokens("header", HEADER_TOKENS)
    return Corpus(
        digest="small",
        subjects=tuple(
            Subject(
                name=f"subject {number}",
                header=(*common, *draw_tokens(f"name {number}", 4)),
                examples=draw_tokens(f"examples {number}", examples),
                questions=[draw_tokens(f"{number}/{each}", 45) for each in range(questions)],
            )
            for number in range(subjects)
        ),
    )


def run(cell: Cell, prompts: Corpus) -> Record:
    assert isinstance(cell.workload, MmluSpec)
    record = simulate(cell, cell.workload.build(prompts), tick=lambda: None)
    assert len(record.answered) == len(record.rows), "some requests failed"
    return record


def measured(
    policy: str, *, prompts: Corpus | None = None, requests: int = REQUESTS, seeds: int = 1, **more: object
) -> Summary:
    settings = Settings(requests=requests, cache_tokens=16_384, seeds=seeds)
    cell = settings.cell(policy, **more)  # type: ignore[arg-type]
    return summarise([run(each, prompts or corpus()) for each in settings.seeded(cell)])


@pytest.fixture(scope="module")
def alone() -> Summary:
    return measured(NO_ROUTING)


def test_routing_wins_at_2_ms(alone: Summary) -> None:
    """Table 1, first line: fewer prefixes are computed, and the detour costs next to nothing."""
    routed = measured(PAPER_POLICY)
    assert routed.latency_s < alone.latency_s
    assert routed.actual_hit > alone.actual_hit
    assert routed.forwarded > 0.5


@pytest.mark.parametrize("delay_s", [0.2, 1.0])
def test_the_papers_rule_loses_by_about_two_delays_on_a_slow_network(alone: Summary, delay_s: float) -> None:
    """Table 1, second and third line: each forwarded request pays a round trip."""
    routed = measured(PAPER_POLICY, delay_s=delay_s)
    lost_s = routed.latency_s - alone.latency_s
    saved_s = alone.engine_s - routed.engine_s
    assert lost_s > 0
    assert (lost_s + saved_s) / (2 * delay_s * routed.forwarded) == pytest.approx(1.0, abs=0.1)


def test_the_default_policy_does_not_lose_where_the_papers_does() -> None:
    """At 1 s a round trip costs more than any prefill here: `cost` stays at home, the paper's rule goes."""
    ours, papers = measured("cost", delay_s=1.0), measured(PAPER_POLICY, delay_s=1.0)
    assert ours.forwarded < 0.2 < papers.forwarded
    assert ours.latency_s < papers.latency_s / 2


def test_slower_polling_lowers_the_hottest_share() -> None:
    """Table 3: nodes with stale views spread requests. At the paper's page size and with MMLU's header."""
    shares = [
        measured(PAPER_POLICY, prompts=corpus(examples=60), poll_s=poll_s, page_size=1).hottest_share
        for poll_s in (0.1, 300.0)
    ]
    assert shares[0] > 1.5 * shares[1]


def test_skew_raises_hit_rate_and_concentration() -> None:
    """Tables 2 and 3: popular questions come again, and the nodes of their subjects serve more than others.

    Method: three seeds, since a seed draws which subjects are hot; as many requests as there are questions.
    """
    prompts = corpus(subjects=20, questions=6)
    uniform, skewed = (
        measured(PAPER_POLICY, prompts=prompts, requests=120, seeds=3, skewed=skewed)
        for skewed in (False, True)
    )
    assert skewed.actual_hit > uniform.actual_hit + 0.02
    assert skewed.hottest_share > uniform.hottest_share + 0.05


def test_skew_concentrates_subjects_of_mmlus_sizes_on_average() -> None:
    """Table 3: eleven hot subjects spread less evenly than 57, though one order cannot tell.

    Method: with pages of 16 tokens a subject stays where its first question came in, so that 30 orders of all
    14,042 requests can be counted without being simulated.
    """
    counts = [len(subject.questions) for subject in look_alike().subjects]

    def hottest_share(seed: int, *, skewed: bool) -> float:
        homes: dict[int, int] = {}
        served = [0] * 4
        for turn, (subject, _) in enumerate(make_schedule(MmluSpec(seed=seed, skewed=skewed), counts)):
            served[homes.setdefault(subject, turn % 4)] += 1
        return max(served) / sum(served)

    uniform, skewed = (
        fmean(hottest_share(seed, skewed=skewed) for seed in range(30)) for skewed in (False, True)
    )
    print(f"busiest of four: {uniform:.1%} uniform, {skewed:.1%} skewed")
    assert uniform == pytest.approx(0.34, abs=0.02)
    assert skewed > uniform + 0.03


def test_skew_raises_the_hit_rate_at_page_size_1_where_the_header_concentrates_all_the_same() -> None:
    """Table 3 at the paper's page size: of two nodes that have the header one gets most subjects, hot or not.

    Method: three seeds. Which node gets a subject is drawn by where its first question comes in, so that the
    skewed share spreads around the uniform one: no order between them is asserted.
    """
    prompts = corpus(subjects=20, examples=60, questions=5)
    uniform, skewed = (
        measured(PAPER_POLICY, prompts=prompts, requests=100, seeds=3, skewed=skewed, page_size=1)
        for skewed in (False, True)
    )
    assert skewed.actual_hit > uniform.actual_hit + 0.02
    assert min(uniform.hottest_share, skewed.hottest_share) > 0.55


def test_skew_finds_more_cached_than_subjects_have_in_common() -> None:
    """Table 2: 91.4 % of the paper's skewed prompts was cached, and five sixths of each are common."""
    prompts = corpus(subjects=10, questions=16)
    skewed = measured(PAPER_POLICY, prompts=prompts, requests=160, seeds=2, skewed=True)
    common = 255 / 300
    assert skewed.actual_hit > common - 0.05
    assert measured(PAPER_POLICY, prompts=prompts, requests=160, seeds=2).actual_hit < common


def test_a_common_header_sends_everything_to_one_node_at_page_size_1_only() -> None:
    """With fresh views somebody has the header, and argmax needs no more. Pages of 16 cannot see it."""
    prompts = corpus(examples=60)
    busiest = {
        (page_size, header): measured(
            PAPER_POLICY,
            prompts=prompts,
            requests=50,
            poll_s=0.02,
            pause_s=0.05,
            page_size=page_size,
            header=header,
        ).hottest_share
        for page_size, header in ((1, True), (1, False), (16, True))
    }
    assert busiest[1, True] == 1.0
    assert busiest[1, False] < 0.6
    assert busiest[16, True] < 0.6


def test_a_subject_goes_through_the_three_zones() -> None:
    """Figure 4: nobody's, then one node's, then evicted there and dispersed.

    Method: caches that hold a few subjects each, so that a node that serves many must evict.
    """
    cell = Settings(requests=300).cell(PAPER_POLICY, delay_s=0.2, cache_tokens=800)
    record = run(cell, corpus(subjects=10))
    seen = [zones(subject_shares(record, topic, window=8, stride=2)) for topic in range(10)]
    assert any(zone == 3 for each in seen for zone in each)
    assert any(each[0] == 1 for each in seen)
    assert all(2 in each for each in seen)


def test_a_seed_gives_one_history() -> None:
    cell = Settings(requests=40).cell(PAPER_POLICY)
    first, again, other = (run(cell.seeded(seed), corpus()) for seed in (1, 1, 2))
    assert first.digest == again.digest != other.digest
