"""What can go wrong in a chat.

ChatError   a turn or a command failed; the message is one line for the person at the terminal
"""


class ChatError(Exception):
    """A turn or a command failed; the message is one line for the person at the terminal."""
