"""Is the back end for GPUs right, and how fast is it: `make gpu-check`."""
