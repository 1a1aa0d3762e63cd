"""Panics of the tokenizers library.

A panic in Rust becomes pyo3's PanicException, which derives from BaseException: what handles errors lets it
pass, and a task that it ends is nobody's. Here it becomes an error of the request that has caused it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tokenizer_svc.errors import PanicError

_NAME = "PanicException"
"""Of the class. Every extension made with pyo3 has one of its own, and none can be imported."""


@contextmanager
def no_panic() -> Iterator[None]:
    """Within the block a panic is raised as `PanicError`; all else as it is."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == _NAME:
            raise PanicError(f"the tokenizers library has panicked: {error}") from error
        raise
