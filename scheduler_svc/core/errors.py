"""What can go wrong in the core.

SchedulerError
├── RequestRefused      can never be served; names the field        INVALID_ARGUMENT
│   └── ContextExceeded longer than the context has room for        OUT_OF_RANGE
├── TooMuchWaits        the queue is full; says when to come back   RESOURCE_EXHAUSTED
├── RowFailed           the worker could not compute a row of it    INTERNAL
├── StepRaised          a step with it alone raised an error        INTERNAL
├── RequestPoisoned     it ended several workers, alone on each     ABORTED
├── HandedOver          another scheduler can go on with it         UNAVAILABLE
├── NoSuchWorker        no worker here goes on with it              FAILED_PRECONDITION
├── WorkerFault         a result that does not answer the plan      the worker is given up
├── OutOfBlocks         more blocks asked for than are free         a bug: the process ends
├── IllegalTransition   a sequence cannot go to that state          a bug: the process ends
└── IntegrityError      the scheduler's state contradicts itself    a bug: the process ends
"""


class SchedulerError(Exception):
    """Anything the core raises."""


class RequestRefused(SchedulerError):
    """A request that can never be served. `param` names the field that is wrong."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class ContextExceeded(RequestRefused):
    """A request that needs a sequence of `tokens`, of which `longest` fit. `note`: what the tokens are."""

    def __init__(self, param: str, longest: int, tokens: int, note: str = "") -> None:
        # Clients recognize these words, each its own, and ask again with a shorter prompt. They are
        # Anthropic's, whose numbers Claude Code reads, OpenAI's of old, and OpenAI's of now. Few look at the
        # error's `code`, which newer versions of the openai package leave out of their exceptions' text.
        super().__init__(
            param,
            f"prompt is too long: {tokens} tokens > {longest} maximum{note}. "
            f"This model's maximum context length is {longest} tokens, "
            "and your input exceeds the context window of this model.",
        )


class TooMuchWaits(SchedulerError):
    """Refused for now. What its tenant waits for now will have begun after about `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class RowFailed(SchedulerError):
    """The worker could not compute a row of the request."""


class StepRaised(SchedulerError):
    """The worker's code raised an error in a step of the request, which ran alone. `why`: its text."""

    def __init__(self, why: str) -> None:
        super().__init__(f"a step that computed this request alone raised an error: {why}")


class RequestPoisoned(SchedulerError):
    """Several workers in a row were lost at one place of the request, which ran alone on each of them."""

    def __init__(self) -> None:
        super().__init__(
            "this request was ended: one worker after the other has died while computing it alone"
        )


class HandedOver(SchedulerError):
    """This scheduler has no worker left, and another one has. `suspect`: the last worker was lost with it."""

    def __init__(self, suspect: bool) -> None:
        super().__init__("another scheduler can go on with this request")
        self.suspect = suspect


class NoSuchWorker(SchedulerError):
    """No worker here goes on with the request; the message says what they lack."""


class WorkerFault(SchedulerError):
    """A worker's result that does not answer its plan."""


class OutOfBlocks(SchedulerError):
    """More blocks were asked for than are free."""


class IllegalTransition(SchedulerError):
    """A change of state that is not in the table of legal ones."""


class IntegrityError(SchedulerError):
    """Blocks, tables, slots and queues contradict each other."""
