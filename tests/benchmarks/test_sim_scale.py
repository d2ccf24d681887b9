"""The benchmark of large swarms, on a small one."""

from __future__ import annotations

import argparse

from benchmarks.sim_scale import Scale
from peerinfer.sim.runtime import run_virtual


def test_a_small_swarm_goes_the_way_of_the_large_one() -> None:
    """Goal: the command works. Method: twelve nodes, and every request is answered, many from caches."""
    options = argparse.Namespace(nodes=12, requests=120, seconds=4.0, policy="cost", seed=0)
    scale = Scale(options)
    facts = run_virtual(scale.run, seed=0)
    assert scale.totals.requests == 120
    assert scale.totals.failed == 0
    assert scale.totals.cached_tokens > scale.totals.prompt_tokens / 10
    assert set(scale.phases) == {"start", "settle", "requests"}
    assert facts["messages"]
