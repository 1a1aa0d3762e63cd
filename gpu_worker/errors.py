"""What can go wrong in a worker.

    WorkerError
    ├── ModelError      the directory is not a model that can be served    the process does not start
    ├── CapacityError   weights, a step or one sequence do not fit         the process does not start
    ├── KernelError     compiled kernels cannot be had                     PyTorch computes instead
    ├── DeviceError     the GPU does nothing more for this process         the process ends
    └── PlanError       a plan contradicts itself or the batch             INVALID_ARGUMENT, the call ends

What is wrong with one row alone is no exception: it is a `RowError` in the step's result.
"""


class WorkerError(Exception):
    """Base of all; the message is one line for a person."""


class ModelError(WorkerError):
    """The directory is not a model that can be served."""


class CapacityError(WorkerError):
    """The memory does not hold the weights, a full step, or one sequence of the longest allowed length."""


class KernelError(WorkerError):
    """Compiled kernels cannot be had here: no compiler, or not what this machine can run."""


class DeviceError(WorkerError):
    """A GPU failed in a way that only a new process recovers from."""


class PlanError(WorkerError):
    """A plan that cannot be applied; what came before it is not to be trusted either."""
