"""What can go wrong here, and the gRPC status that each error becomes.

TokenizerError
├── InvalidRequestError   INVALID_ARGUMENT, trailing metadata `quire-param` = the field at fault
│   └── TooLongError      OUT_OF_RANGE, metadata as above
├── OtherTokenizerError   UNAVAILABLE: another replica may be the right one
├── SchedulerError        INTERNAL
├── PanicError            INTERNAL
└── ModelDirectoryError   none: the process does not start
"""

from ops.runtime.errors import StartError


class TokenizerError(Exception):
    """Anything that this package raises on purpose."""


class InvalidRequestError(TokenizerError):
    """A request that can never be served; `param` names the field of the public API at fault."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class TooLongError(InvalidRequestError):
    """A prompt that is longer than any context; its tokens are not counted."""


class OtherTokenizerError(TokenizerError):
    """The answer was begun by a tokenizer with other files: this one would go on with other text."""

    def __init__(self) -> None:
        super().__init__("this tokenizer has other files than the one that has begun the answer")


class SchedulerError(TokenizerError):
    """A scheduler sent something that its contract does not allow."""


class PanicError(TokenizerError):
    """The tokenizers library has panicked over this request's text."""


class ModelDirectoryError(TokenizerError, StartError):
    """The model directory lacks something, or holds something unusable; the message is one line."""
