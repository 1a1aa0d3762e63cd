"""Checks and measures the back end for GPUs: `make gpu-check`."""
