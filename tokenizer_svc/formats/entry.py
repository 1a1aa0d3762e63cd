"""How a model spells thoughts and calls of functions: the fields of an entry.

The entries are in `call_table.py` and `thought_table.py`; `formats.py` chooses a model's.
"""

from dataclasses import dataclass

from proto.tokenizer_pb2 import CallSyntax

NONE = "none"
"""Name of the format that spells nothing."""
JSON = "json"
"""Name of the format of calls of models whose chat template tells of none."""
LINE = "\n?"
"""In the text of a format: a new line or nothing."""


@dataclass(frozen=True)
class CallFormat:
    """How calls are spelled. Fields without a line here are those of `AnswerFormat`."""

    signs: tuple[tuple[str, ...], ...]
    """A template that has all texts of one of these is of a model with this format. Empty: none tells."""
    syntax: CallSyntax
    begin: tuple[str, ...] = ()
    begin_first: tuple[str, ...] = ()
    """Field `call_first` of `AnswerFormat`."""
    end: str = ""
    opening: str = ""
    header: str = ""
    delimiters: tuple[str, ...] = ()
    call: str = ""
    """One call as the model writes it. `$name` and `$arguments` stand for what they say, `$recipient` for the
    name, too, `$number` for digits, `$id` for an identifier of small letters and digits, `$space` for a space
    or nothing, `LINE` for a new line or nothing. In a name with `|e` behind it, as in `$name|e`, `&` and `"`
    are `&amp;` and `&quot;`."""
    argument: str = ""
    """One argument, if each is an element of XML: `$key`, `$value`, `$text` for `true` if the value is a text
    as it stands, and `false` if it is JSON, and `$type` for the value's type in JSON Schema. With BARE_KEYS:
    one that is a text."""
    arguments: str = ""
    """Field `arguments_text` of `AnswerFormat`."""
    first: str = ""
    """Before the first call."""
    between: str | None = ""
    """Between two calls. None: there is one call at most."""
    last: str = ""
    """After the last call."""
    token: str = ""
    """A special token that tells of the format, if the template does of none."""


@dataclass(frozen=True)
class ThoughtFormat:
    """How thoughts are spelled. Fields without a line here are those of `AnswerFormat`."""

    signs: tuple[tuple[str, ...], ...]
    """As in `CallFormat`."""
    begin: str
    """Empty: there are no thoughts, and the entry says how texts are told from calls."""
    end: str
    delimiters: tuple[str, ...] = ()
    """These are no text anywhere. Without any, `answer` and `closing` are none around an answer alone."""
    others: tuple[str, ...] = ()
    """Names of further formats of the model. A prompt that ends with a mark of one tells of that one."""
    bare_end: bool = False
    """An answer without a thought may begin with `end`."""
    message: str = ""
    """Begins each message of an answer that consists of messages: these are thoughts, texts and calls, in any
    order. The prompt ends with this text. Empty: the answer is no messages, and may begin with a thought."""
    answer: str = ""
    """Head of the answer after its thought. Where there are messages: of the text that is the last one."""
    said: str = ""
    """Where there are messages: head of a text that others follow."""
    closing: str = ""
    """What may come after a text."""
