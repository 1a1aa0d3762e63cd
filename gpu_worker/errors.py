"""The errors of a worker.

    WorkerError
    ├── ModelError      the directory is not a model that can be served    the process does not start
    ├── CapacityError   a step, one sequence or a setting does not fit     the process does not start
    │   └── OutOfMemoryError   the same, of memory that others may have    the process does not start now
    ├── KernelError     compiled kernels cannot be used here               PyTorch computes instead
    ├── DeviceError     the GPU no longer works for this process           the process ends
    ├── StepError       the code raised an error in a step         INTERNAL, the call ends
    └── PlanError       a plan contradicts itself or the batch             INVALID_ARGUMENT, the call ends

An error of one row alone is no exception. It is a `RowError` in the step's result.
"""


class WorkerError(Exception):
    """Base of all errors here. The message is one line for a person."""


class ModelError(WorkerError):
    """The directory is not a model that can be served."""


class CapacityError(WorkerError):
    """The machine has no such device, or a setting asks for what does not fit into memory."""


class NoDeviceError(CapacityError):
    """PyTorch finds fewer GPUs than are asked for. They may be there later: at boot the driver comes when it
    comes, and a GPU may be reset."""


class OutOfMemoryError(CapacityError):
    """Weights, a full step, or one sequence do not fit into what is free. Others may have the rest."""


TRANSIENT = OutOfMemoryError, NoDeviceError
"""The process does not start now, and may later: one that is ending may still have the memory."""


class KernelError(WorkerError):
    """Compiled kernels cannot be used: there is no compiler, or this machine cannot run them."""


class DeviceError(WorkerError):
    """A GPU failed in such a way that only a new process can use it again."""


class PlanError(WorkerError):
    """A plan contradicts itself or the batch. Earlier plans may have gone wrong, too, so the call ends."""


class StepError(WorkerError):
    """The code raised an error in a step, and the device still works."""

    def __init__(self, step: int, cause: Exception) -> None:
        first_line = str(cause).strip().partition("\n")[0]
        super().__init__(f"step {step}: {type(cause).__name__}: {first_line}")
        self.step = step


def line_of(error: Exception) -> str:
    """The first line of an error of another library."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
