"""What becomes of a failure in the core: the process ends.

The core was in the middle of something. Tokens may have been taken in and not delivered, or blocks may be
counted twice, and nobody knows which. So nothing more is delivered. The process ends, and its callers make
their calls again with another scheduler. A request that makes the core of every scheduler fail becomes a
suspect, and is refused in the end (`proto/rpc/resume.py`).
"""

from collections.abc import Callable

Fail = Callable[[BaseException], None]
"""Is called with what the core has raised. When it returns, no more is sent to callers."""


class Guard:
    """To be entered whenever the core changes, and while what came of that is delivered.

    Whatever is raised in such a block is unexpected. After the first failure no block is entered any more: it
    raises that error instead.
    """

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._error: BaseException | None = None

    def __enter__(self) -> None:
        if self._error is not None:
            raise self._error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and self._error is None:
            self._error = error
            self._fail(error)
