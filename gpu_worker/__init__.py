"""The worker: tensors, pages and kernels. It applies plans and decides nothing."""

import os

# The model's threads wait asleep, not spinning: they share the cores with the other services, and a
# spinning one can hold up the very thread that it waits for. Read once, when PyTorch is loaded, so
# it must be said before. On an idle machine it costs a few microseconds per product.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
