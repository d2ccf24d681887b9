"""All experiments by name: the paper's in its order, then ours."""

from __future__ import annotations

from collections.abc import Mapping

from peerinfer.sim.experiments.breakeven import BREAKEVEN
from peerinfer.sim.experiments.experiment import Experiment
from peerinfer.sim.experiments.fig2 import FIG2
from peerinfer.sim.experiments.fig3 import FIG3
from peerinfer.sim.experiments.fig4 import FIG4
from peerinfer.sim.experiments.table1 import TABLE1
from peerinfer.sim.experiments.table2 import TABLE2
from peerinfer.sim.experiments.table3 import TABLE3
from peerinfer.sim.experiments.traces import TRACES

EXPERIMENTS: Mapping[str, Experiment] = {
    each.name: each for each in (TABLE1, FIG2, TABLE2, FIG3, FIG4, TABLE3, BREAKEVEN, TRACES)
}
