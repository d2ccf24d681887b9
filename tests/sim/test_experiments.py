"""Experiments: what is measured is kept, and what is reported is what was measured."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from peerinfer.sim.experiments.breakeven import crossing
from peerinfer.sim.experiments.calibration import PAPER, calibration_json, read_calibration
from peerinfer.sim.experiments.catalogue import EXPERIMENTS
from peerinfer.sim.experiments.cell import Cell
from peerinfer.sim.experiments.effort import effort
from peerinfer.sim.experiments.record import Record, Row, record_from_json
from peerinfer.sim.experiments.results import Results
from peerinfer.sim.experiments.settings import NO_ROUTING, Settings, left_out, possible
from peerinfer.sim.experiments.store import Store
from peerinfer.sim.experiments.summary import summarise
from peerinfer.sim.experiments.table import Column, Table, percent
from peerinfer.sim.experiments.windows import (
    Share,
    busiest_topics,
    cycling_topics,
    own_window,
    subject_shares,
    zones,
)
from peerinfer.sim.experiments.write_report import extent, run_digest, write_report
from peerinfer.sim.workloads.mmlu import MmluSpec
from tools.fill_experiments import BLOCK, fill


def row(
    *, topic: int = 0, entry: int = 0, served_by: int = 0, cached: int = 80, latency_us: int = 1000
) -> Row:
    return Row(
        topic=topic,
        entry=entry,
        served_by=served_by,
        prompt_tokens=100,
        expected_cached_tokens=90,
        cached_tokens=cached,
        latency_us=latency_us,
        ttft_us=latency_us,
        engine_us=latency_us - 300,
        trees_us=50,
        processing_us=100,
        network_us=150,
    )


def record(*rows: Row) -> Record:
    return Record(("a", "b"), 4, rows, 1.5)


def test_a_summary_counts_tokens_first_and_divides_last() -> None:
    ours = summarise([record(row(served_by=1), row(cached=0, latency_us=3000), row(served_by=-1))])
    assert (ours.requests, ours.failed) == (3, 1)
    assert ours.latency_s == pytest.approx(0.002)
    assert ours.engine_s + ours.trees_s + ours.processing_s + ours.network_s == pytest.approx(ours.latency_s)
    assert (ours.expected_hit, ours.actual_hit) == (0.9, 0.4)
    assert (ours.forwarded, ours.hottest_share) == (0.5, 0.5)
    assert ours.latency_spread_s == 0.0


def test_the_spread_is_that_of_the_seeds_means() -> None:
    one, other = record(row(latency_us=1000), row(latency_us=3000)), record(row(latency_us=4000))
    ours = summarise([one, other])
    assert ours.latency_s == pytest.approx(0.003)
    assert ours.latency_spread_s == pytest.approx(0.001 * 2**0.5)


def test_a_records_digest_is_of_its_history_alone() -> None:
    assert record(row()).digest == replace(record(row()), seconds=99.0).digest
    assert record(row()).digest != record(row(cached=79)).digest
    again = record_from_json(json.loads(json.dumps(record(row(), row(topic=1)).as_json())))
    assert again == record(row(), row(topic=1))
    damaged = record(row()).as_json() | {"nodes": 5}
    with pytest.raises(ValueError, match="damaged"):
        record_from_json(json.loads(json.dumps(damaged)))


def test_a_result_is_found_by_its_spec_and_by_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an interrupted run goes on; a changed spec, another corpus or other code is measured anew."""
    cell = Settings().cell("cost")
    store = Store(tmp_path, corpus="x")
    assert store.get(cell) is None
    store.put(cell, record(row()))
    assert store.get(cell) == record(row())
    assert Store(tmp_path, corpus="y").get(cell) is None
    for changed in (
        replace(cell, policy="random"),
        replace(cell, network_delay_s=0.003),
        replace(cell, calibration=replace(PAPER, overhead_s=0.09)),
        cell.seeded(1),
        cell.shortened(10),
    ):
        assert store.get(changed) is None
    with monkeypatch.context() as other_code:
        other_code.setattr("peerinfer.sim.experiments.cell.code_digest", lambda: "other")
        assert store.get(cell) is None
    file = next(tmp_path.iterdir())
    file.write_text(file.read_text()[:100])
    assert store.get(cell) is None, "half a file is no result"


def test_all_experiments_share_their_baseline() -> None:
    """Without routing neither delay nor polling matters: one measurement serves every table."""
    settings = Settings()
    cells = {cell for each in EXPERIMENTS.values() for cell in each.cells(settings)}
    baselines = [
        cell
        for cell in cells
        if cell.policy == NO_ROUTING and isinstance(cell.workload, MmluSpec) and not cell.workload.skewed
    ]
    assert len(baselines) == 1


def test_real_nodes_measure_what_they_can() -> None:
    settings = Settings(mode="embedded")
    assert possible(settings.cell("cost", poll_s=2.0))
    assert not possible(settings.cell("cost", poll_s=0.02))
    assert not possible(settings.cell("cost", page_size=1))
    assert possible(Settings().cell("cost", page_size=1, poll_s=300.0))


def test_what_real_nodes_leave_out_is_told_in_one_line() -> None:
    """Goal: real mode never drops a line of a table without a word."""
    settings = Settings(mode="embedded", policies=("longest-prefix",))
    cells = EXPERIMENTS["table3"].cells(settings)
    assert left_out(cells) == (
        f"{sum(not possible(cell) for cell in set(cells))} of {len(set(cells))} measurements are for the "
        "simulation, not for real nodes: page size 1, Δ_poll 100 ms, Δ_poll 20 ms, Δ_poll 300 s."
    )
    assert left_out(EXPERIMENTS["table1"].cells(settings)) is None
    assert left_out(EXPERIMENTS["table3"].cells(Settings())) is None


def test_every_table_can_be_measured_with_all_requests() -> None:
    """Goal: no cell of tables 1 to 3 is shortened unless the user says so."""
    settings = Settings(page_requests=14_042)
    for name in ("table1", "table2", "table3", "fig2", "fig3", "fig4"):
        for cell in EXPERIMENTS[name].cells(settings):
            assert isinstance(cell.workload, MmluSpec)
            assert cell.workload.requests in (None, 14_042)


def test_small_pages_and_frequent_rounds_take_longer() -> None:
    usual = effort(Settings().cell("cost"))
    assert effort(Settings().cell("cost", page_size=1)) > 2 * usual
    assert effort(Settings().cell("cost", poll_s=0.02)) > usual
    lengths = [max(map(effort, EXPERIMENTS[name].cells(Settings()))) for name in ("breakeven", "table2")]
    assert lengths[0] > lengths[1], "long prompts, too"


def fake(cell: Cell) -> Record:
    """A record whose latencies tell policy and delay."""
    far = cell.policy != NO_ROUTING
    latency_us = 300_000 + (round(1e6 * cell.network_delay_s) if far else 0)
    rows = [
        row(topic=n % 2, entry=n % 4, served_by=2 if far else n % 4, latency_us=latency_us) for n in range(80)
    ]
    return record(*rows)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_reports_from_its_cells(name: str, tmp_path: Path) -> None:
    """Method: made-up records; each of its tables has rows, each of its figures becomes a PNG."""
    settings, experiment = Settings(traces=True), EXPERIMENTS[name]
    records = {cell: fake(cell) for cell in experiment.cells(settings)}
    report = experiment.report(settings, Results(settings, records))
    text = write_report(tmp_path, experiment, report, measured="So much.", notes=["A note."])
    assert text == (tmp_path / f"{name}.md").read_text()
    assert "A note." in text
    assert "So much." in text
    assert report.tables or report.figures
    for table in report.tables:
        assert table.rows
        assert f"### {table.title}" in text
        rows = list(csv.reader((tmp_path / f"{table.name}.csv").open()))
        assert len(rows) == 1 + len(table.rows)
    pytest.importorskip("matplotlib")
    for figure in report.figures:
        assert (tmp_path / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")


def test_tables_without_results_have_dashes() -> None:
    """Real mode cannot measure everything; what the paper says is still there."""
    settings = Settings(policies=("cost",))
    report = EXPERIMENTS["table1"].report(settings, Results(settings, {}))
    assert "| uniform, 1 s | cost | 2.271 | 0.323 | +1.948 | – | – | – |" in report.tables[0].markdown()


def test_the_run_digest_does_not_depend_on_the_order() -> None:
    one, other = Settings().cell("cost"), Settings().cell("random")
    forth = {one: record(row()), other: record(row(cached=1))}
    back = dict(reversed(forth.items()))
    assert run_digest(forth) == run_digest(back)
    assert run_digest(forth) != run_digest({one: record(row())})


def test_a_report_says_how_much_stands_behind_it() -> None:
    one, other = record(row()), record(*[row()] * 1200)
    assert extent([one]).startswith("1 measurements of 1 requests; digest ")
    assert extent([other, one]).startswith("2 measurements of 1 to 1,200 requests; digest ")
    assert extent([one, other]) == extent([other, one])
    assert extent([]) == "Nothing was measured."


def test_the_page_asks_for_what_experiments_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: every block of docs/experiments.md can be filled. Method: made-up results for all of its runs."""
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    runs = {source.split("/")[0] for block in BLOCK.finditer(page) for source in block["sources"].split()}
    assert len(runs) > 1
    monkeypatch.setattr("peerinfer.sim.experiments.plot.can_draw", lambda: False)
    settings = Settings(traces=True)
    for run in runs:
        for experiment in EXPERIMENTS.values():
            cells = experiment.cells(settings)
            report = experiment.report(settings, Results(settings, {cell: fake(cell) for cell in cells}))
            write_report(tmp_path / run, experiment, report, measured="So much.")
            for figure in report.figures:
                (tmp_path / run / f"{figure.name}.png").touch()
    filled, left = fill(page, tmp_path, tmp_path / "img")
    assert left == []
    sources = [source for block in BLOCK.finditer(page) for source in block["sources"].split()]
    assert filled.count("So much.") == sum(not source.endswith(".png") for source in sources)


def test_a_table_is_rounded_for_people_and_whole_for_programs() -> None:
    table = Table(
        name="t", title="T", columns=(Column("Who"), percent("Share (%)")), rows=(("x", 0.12345), ("y", None))
    )
    assert "| x | 12.3 |" in table.markdown()
    assert "| y | – |" in table.markdown()
    assert table.csv() == "Who,Share (%)\nx,0.12345\ny,\n"
    assert table.as_json()["rows"] == [{"Who": "x", "Share (%)": 0.12345}, {"Who": "y", "Share (%)": None}]


def test_windows_move_over_a_subjects_own_requests() -> None:
    rows = [row(topic=n % 2, served_by=0 if n < 40 else 1) for n in range(80)]
    shares = subject_shares(record(*rows), 0, window=20, stride=10)
    assert [share.requests for share in shares] == [10, 20, 30, 40]
    assert [share.by_node[:2] for share in shares] == [(1.0, 0.0), (1.0, 0.0), (0.5, 0.5), (0.0, 1.0)]


def test_a_window_is_the_papers_where_a_subject_fills_it() -> None:
    """Goal: figure 3 shows subjects of any size; its title says what window it has."""
    many = record(*(row(topic=n % 2 if n < 80 else 0) for n in range(340)))
    assert own_window(many, 0) == 300
    assert own_window(many, 1) == 10


def test_the_busiest_subjects_are_so_in_every_record() -> None:
    """Goal: figure 3 shows subjects that have requests enough under skew, too."""
    one = record(*[row(topic=0)] * 9, *[row(topic=1)] * 3)
    other = record(row(topic=0), *[row(topic=1)] * 3)
    assert busiest_topics([one, other], 1) == [1]
    assert busiest_topics([one], 2) == [0, 1]
    assert busiest_topics([], 2) == []


def test_subjects_that_cycle_come_first() -> None:
    """Method: subject 0 is always one node's; subject 1 is nobody's, then one node's, then dispersed."""

    def served(n: int) -> int:
        return 0 if 40 <= n < 80 else n // 2 % 4

    cycling = record(*(row(topic=n % 2, served_by=served(n) if n % 2 else 3) for n in range(120)))
    steady = record(*(row(topic=n % 2, served_by=3) for n in range(120)))
    assert cycling_topics([cycling], window=10, stride=2) == [1, 0]
    assert cycling_topics([cycling, steady], window=10, stride=2) == [0, 1], "the least of them counts"
    assert cycling_topics([cycling], window=61, stride=2) == [], "too few requests for such windows"


def test_zones_are_those_of_figure_4() -> None:
    tops = (0.4, 0.8, 0.95, 1.0, 0.8, 0.5, 0.6, 0.92)
    assert zones([Share(n, (top, 1 - top)) for n, top in enumerate(tops)]) == [1, 1, 2, 2, 2, 3, 3, 2]


def test_the_break_even_is_where_the_gap_turns() -> None:
    assert crossing([(0.01, -1.0), (1.0, 1.0)]) == pytest.approx(0.1)
    assert crossing([(0.01, 0.5), (1.0, 1.0)]) == 0.01
    assert crossing([(0.01, -0.5), (1.0, -0.1)]) is None


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    file.write_text(calibration_json(replace(PAPER, name="mine"), machine="x"))
    assert read_calibration(file) == replace(PAPER, name="mine")
    file.write_text('{"calibration": {"name": "half"}}')
    with pytest.raises(ValueError, match="peerinfer calibrate"):
        read_calibration(file)
