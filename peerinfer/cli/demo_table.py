"""The demo's output: a line per request as it ends, and what came of it in total."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from peerinfer.cli.client import Answer
from peerinfer.cli.show import seconds

HEADER = ("#", "routing", "text", "entry", "served by", "route", "expected", "cached", "of", "TTFT")
WIDTHS = (3, 7, 10, 6, 9, 9, 8, 6, 4, 8)  # 79 columns with a space between them
LEFT = frozenset({"routing", "text", "entry", "served by", "route"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request of the workload and how it was answered."""

    number: int
    routed: bool
    topic: str
    entry: str
    served_by: str
    route: str
    expected_cached_tokens: int
    cached_tokens: int
    prompt_tokens: int
    ttft_s: float
    duration_s: float


def make_row(answer: Answer, *, number: int, routed: bool, topic: str, entry: str, served_by: str) -> Row:
    """A row from what the client saw; what the node left out counts as nothing cached."""
    return Row(
        number=number,
        routed=routed,
        topic=topic,
        entry=entry,
        served_by=served_by,
        route=answer.route or "?",
        expected_cached_tokens=answer.expected_cached_tokens or 0,
        cached_tokens=answer.cached_tokens or 0,
        prompt_tokens=answer.prompt_tokens or 0,
        # An answer without any text (the model ended at once) was there when it ended.
        ttft_s=answer.duration_s if answer.ttft_s is None else answer.ttft_s,
        duration_s=answer.duration_s,
    )


def print_header(console: Console) -> None:
    """The column names."""
    console.print(" ".join(_cells(HEADER)), style="dim")


def print_row(console: Console, row: Row) -> None:
    """One request, aligned under the header; forwarded ones stand out where there is colour."""
    cells = _cells(
        (
            str(row.number),
            "on" if row.routed else "off",
            row.topic,
            row.entry,
            row.served_by,
            row.route,
            str(row.expected_cached_tokens),
            str(row.cached_tokens),
            str(row.prompt_tokens),
            seconds(row.ttft_s),
        )
    )
    style = "green" if row.route == "forwarded" else "none" if row.routed else "dim"
    console.print(" ".join(cells), style=style)


def _cells(texts: Sequence[str]) -> list[str]:
    return [
        text[:width].ljust(width) if name in LEFT else text.rjust(width)
        for name, width, text in zip(HEADER, WIDTHS, texts, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What one pass came to."""

    requests: int
    forwarded: int
    hit_rate: float
    """Cached prompt tokens, divided by all prompt tokens."""
    expected_hit_rate: float
    as_expected: int
    """Requests whose cached tokens were exactly the expected ones."""
    mean_ttft_s: float
    median_ttft_s: float
    hottest_share: float
    """Share of the requests that the busiest node served."""


def summarise(rows: Sequence[Row]) -> Summary:
    """The numbers of one pass, which must not be empty."""
    tokens = sum(row.prompt_tokens for row in rows) or 1
    served = Counter(row.served_by for row in rows)
    ttfts = [row.ttft_s for row in rows]
    return Summary(
        requests=len(rows),
        forwarded=sum(row.route == "forwarded" for row in rows),
        hit_rate=sum(row.cached_tokens for row in rows) / tokens,
        expected_hit_rate=sum(row.expected_cached_tokens for row in rows) / tokens,
        as_expected=sum(row.cached_tokens == row.expected_cached_tokens for row in rows),
        mean_ttft_s=statistics.fmean(ttfts),
        median_ttft_s=statistics.median(ttfts),
        hottest_share=max(served.values()) / len(rows),
    )


def print_summary(console: Console, on: Summary, off: Summary) -> None:
    """Both passes side by side, and the difference in a sentence."""
    console.print(f"{'':24}{'routing on':>12}{'routing off':>13}", style="dim")
    for name, left, right in (
        ("requests", str(on.requests), str(off.requests)),
        ("forwarded", str(on.forwarded), str(off.forwarded)),
        ("prompt tokens cached", f"{on.hit_rate:.1%}", f"{off.hit_rate:.1%}"),
        ("  expected", f"{on.expected_hit_rate:.1%}", f"{off.expected_hit_rate:.1%}"),
        (
            "requests as expected",
            f"{on.as_expected} of {on.requests}",
            f"{off.as_expected} of {off.requests}",
        ),
        ("mean TTFT", seconds(on.mean_ttft_s), seconds(off.mean_ttft_s)),
        ("median TTFT", seconds(on.median_ttft_s), seconds(off.median_ttft_s)),
        ("share of busiest node", f"{on.hottest_share:.1%}", f"{off.hottest_share:.1%}"),
    ):
        console.print(f"{name:24}{left:>12}{right:>13}")
    console.print()
    console.print(verdict(on, off))


def verdict(on: Summary, off: Summary) -> str:
    """What routing did to the wait for the first token, whichever way it went."""
    ratio = on.mean_ttft_s / off.mean_ttft_s
    if ratio < 1:
        return f"With routing the first token came {1 / ratio:.1f} times sooner on average."
    return f"Routing did not pay off in this run: the mean TTFT is {ratio:.2f} times the one without."


def summary_json(rows: Sequence[Row]) -> dict[str, object]:
    """The same for programs."""
    return {
        "requests": [dataclasses.asdict(row) for row in rows],
        "routing_on": dataclasses.asdict(summarise([row for row in rows if row.routed])),
        "routing_off": dataclasses.asdict(summarise([row for row in rows if not row.routed])),
    }
