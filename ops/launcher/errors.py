"""What can keep a deployment from running.

LaunchError              exit status 1   the machine does not let it
└── UsageError           exit status 2   what was asked for cannot be
"""


class LaunchError(Exception):
    """The deployment cannot run; the message is for the person who started it."""

    exit_status = 1


class UsageError(LaunchError):
    """The command asks for what cannot be, such as a model directory that is none."""

    exit_status = 2
