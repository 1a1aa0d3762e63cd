"""What keeps a process, or a command, from starting."""


class StartError(Exception):
    """The process cannot start, nor will it at a second try; the message is one line for a person."""
