"""A cell's workload, over MMLU's texts or what stands in for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peerinfer.sim.experiments.cell import WorkloadSpec
from peerinfer.sim.workloads.corpus import Corpus, load_corpus
from peerinfer.sim.workloads.look_alike import look_alike
from peerinfer.sim.workloads.mmlu import MmluSpec
from peerinfer.sim.workloads.mooncake import MooncakeSpec
from peerinfer.sim.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Prompts:
    """Where prompts come from."""

    data: Path | None
    corpus: Corpus

    def workload(self, spec: WorkloadSpec) -> Workload:
        """The workload of a spec. Raises `ValueError` if its data is not here."""
        if isinstance(spec, MmluSpec):
            return spec.build(self.corpus)
        if isinstance(spec, MooncakeSpec):
            if self.data is None:
                raise ValueError("Mooncake's traces are not here: name their directory with --data")
            return spec.build(self.data)
        return spec.build()


def open_prompts(data: Path | None, *, say: Callable[[str], None]) -> Prompts:
    """MMLU from `data`, or the look-alike without. Raises `ValueError` if it is not there."""
    return Prompts(data, look_alike() if data is None else load_corpus(data, say=say))
