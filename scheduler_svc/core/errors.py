"""What can go wrong in the core.

SchedulerError
├── RequestRefused      can never be served; names the field        INVALID_ARGUMENT
│   └── ContextExceeded longer than the context has room for        OUT_OF_RANGE
├── TooMuchWaits        the queue is full; says when to come back   RESOURCE_EXHAUSTED
├── RowFailed           the worker could not compute a row of it    INTERNAL
├── RequestPoisoned     two workers in a row were lost with it      ABORTED
├── WorkerFault         a result that does not answer the plan      the worker is given up
├── OutOfBlocks         more blocks asked for than are free         a bug: the planner counts first
├── IllegalTransition   a sequence cannot go to that state          a bug
└── IntegrityError      the scheduler's state contradicts itself    a bug
"""


class SchedulerError(Exception):
    """Anything the core raises."""


class RequestRefused(SchedulerError):
    """A request that can never be served. `param` names the field that is wrong."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class ContextExceeded(RequestRefused):
    """A request that needs a longer sequence than the `longest` tokens that fit."""

    def __init__(self, param: str, longest: int, asked: str) -> None:
        # Some clients recognize these words, and ask again with a shorter prompt.
        super().__init__(param, f"This model's maximum context length is {longest} tokens, but {asked}")


class TooMuchWaits(SchedulerError):
    """Refused for now. All that waits now will have begun after about `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class RowFailed(SchedulerError):
    """The worker could not compute a row of the request."""


class RequestPoisoned(SchedulerError):
    """Two workers in a row were lost before the request gained a token on them."""

    def __init__(self) -> None:
        super().__init__("two workers in a row were lost while they computed this request")


class WorkerFault(SchedulerError):
    """A worker's result that does not answer its plan."""


class OutOfBlocks(SchedulerError):
    """More blocks were asked for than are free."""


class IllegalTransition(SchedulerError):
    """A change of state that is not in the table of legal ones."""


class IntegrityError(SchedulerError):
    """Blocks, tables, slots and queues contradict each other."""
