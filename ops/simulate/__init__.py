"""Many workers and requests under virtual time: the scheduler's own core, and a model of what steps cost."""
