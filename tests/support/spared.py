"""To be imported, before the first launch, by a process that interprets kernels: see `interpreter.py`."""

from tests.support.interpreter import spare

spare()
