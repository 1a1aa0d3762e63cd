"""Errors that keep a process, a command or a deployment from starting or running.

StartError               exit status 2     a process: a second try would not help
└── TransientStartError  exit status 1     a process: a second try may help
LaunchError              exit status 1     a deployment: the machine does not let it
└── UsageError           exit status 2     a deployment: the command asks for what cannot be
"""


class StartError(Exception):
    """The process cannot start, and a second try would not help. The message is one line for a person."""

    exit_status = 2


class TransientStartError(StartError):
    """What keeps the process from starting may pass, such as a Hub that does not answer."""

    exit_status = 1


class LaunchError(Exception):
    """The deployment cannot run; the message is for the person who started it."""

    exit_status = 1


class UsageError(LaunchError):
    """The command asks for something impossible, such as a model directory that does not exist."""

    exit_status = 2
