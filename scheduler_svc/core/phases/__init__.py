"""The phases of a step: `planner.py` orders those that make a plan, and `settle.py` takes in its result."""
