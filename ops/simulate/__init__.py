"""The simulator: workers and requests in virtual time, with the scheduler's core and a model of costs."""

from ops.bench.command import RESULTS

STEP_COST = RESULTS / "step_cost.json"
"""Measured cost of the shipped model's steps."""

SWAP_US = 100.0
"""Microseconds to copy one block of the shipped model to the host, or back, rounded to one digit."""
