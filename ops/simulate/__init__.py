"""Many workers and requests under virtual time: the scheduler's own core, and a model of what steps cost."""

from pathlib import Path

RESULTS = Path(__file__).parents[1] / "bench" / "results"
STEP_COST = RESULTS / "step_cost.json"
"""What steps of the shipped model cost; measured."""

SWAP_US = 100.0
"""Microseconds that a block of the shipped model takes to the host, or back, to one digit."""
