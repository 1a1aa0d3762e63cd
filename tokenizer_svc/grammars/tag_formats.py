"""Structural tags as clients of vLLM and SGLang write them: a tree of formats, each with its fields.

The library xgrammar defines them, in its module `structural_tag`.
"""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ops.model_directory.grammars import GrammarError

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenName = Annotated[int, Field(ge=0)] | Text
"""A token: its id or its text."""
Style = Literal[
    "json",
    "qwen_xml",
    "minimax_xml",
    "minimax_m3_xml",
    "deepseek_xml",
    "deepseek_v4_1_xml",
    "glm_xml",
    "kimi_k3_xml",
    "gemma",
]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ConstString(_Fields):
    """This very text."""

    type: Literal["const_string"]
    value: str


class JsonSchema(_Fields):
    """A value of a JSON Schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] | bool
    style: Style = "json"
    """Other than `json`: an object's members as a model writes the arguments of a call."""
    any_order: bool = False
    """Has no effect: members come in the schema's order, which is one of those that it allows."""
    max_whitespace_cnt: Count | None = None
    """Characters between two parts of JSON at most."""
    excludes: tuple[Text, ...] = ()
    """Texts with special tokens, which are in no value."""


class AnyText(_Fields):
    """Any text that has none of `excludes` in it."""

    type: Literal["any_text"]
    excludes: tuple[str, ...] = ()
    max_tokens: Count | None = None
    max_chars: Count | None = None


class Token(_Fields):
    """One special token."""

    type: Literal["token"] = "token"
    token: TokenName


class AnyTokens(_Fields):
    """Any number of tokens, none of them special or one of `exclude_tokens`."""

    type: Literal["any_tokens"]
    exclude_tokens: tuple[TokenName, ...] = ()
    max_tokens: Count | None = None


class Grammar(_Fields):
    """A text that follows a grammar."""

    type: Literal["grammar"]
    grammar: Text
    syntax: Literal["ebnf", "lark"] = "ebnf"


class Regex(_Fields):
    """A text that a regular expression matches."""

    type: Literal["regex"]
    pattern: Text


class Sequence(_Fields):
    """One format after the other."""

    type: Literal["sequence"]
    elements: tuple["Format", ...] = Field(min_length=1)


class Or(_Fields):
    """One of the formats."""

    type: Literal["or"]
    elements: tuple["Format", ...] = Field(min_length=1)


class Tag(_Fields):
    """Something between a mark that begins it and one that ends it."""

    type: Literal["tag"] = "tag"
    begin: str | Token
    content: "Format"
    end: str | Annotated[tuple[str, ...], Field(min_length=1)] | Token

    @property
    def ends(self) -> tuple[str | Token, ...]:
        """Each mark that may end it."""
        return self.end if isinstance(self.end, tuple) else (self.end,)


class TriggeredTags(_Fields):
    """Any text. Where a trigger occurs in it, it begins one of the tags."""

    type: Literal["triggered_tags"]
    triggers: tuple[Text, ...] = Field(min_length=1)
    tags: tuple[Tag, ...] = Field(min_length=1)
    at_least_one: bool = False
    """It begins with a tag."""
    stop_after_first: bool = False
    excludes: tuple[Text, ...] = ()


class TokenTriggeredTags(_Fields):
    """The same with tokens in place of texts."""

    type: Literal["token_triggered_tags"]
    trigger_tokens: tuple[TokenName, ...] = Field(min_length=1)
    tags: tuple[Tag, ...] = Field(min_length=1)
    at_least_one: bool = False
    stop_after_first: bool = False
    exclude_tokens: tuple[TokenName, ...] = ()

    @property
    def triggers(self) -> tuple[Token, ...]:
        return _tokens(self.trigger_tokens)

    @property
    def excludes(self) -> tuple[Token, ...]:
        return _tokens(self.exclude_tokens)


class TagsWithSeparator(_Fields):
    """Tags, with the separator between them."""

    type: Literal["tags_with_separator"]
    tags: tuple[Tag, ...] = Field(min_length=1)
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


class Some(_Fields):
    """The content or nothing, once or more often, or any number of times."""

    type: Literal["optional", "plus", "star"]
    content: "Format"

    @property
    def times(self) -> tuple[int, int | None]:
        """The least number and the most; None: any."""
        return int(self.type == "plus"), 1 if self.type == "optional" else None


class Repeat(_Fields):
    """The content a number of times."""

    type: Literal["repeat"]
    min: Count
    max: Annotated[int, Field(ge=-1, le=2**31 - 1)]
    """-1: any number."""
    content: "Format"

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if -1 < self.max < self.min:
            raise ValueError("max is less than min")
        return self

    @property
    def times(self) -> tuple[int, int | None]:
        """The least number and the most; None: any."""
        return self.min, None if self.max == -1 else self.max


class Dispatch(_Fields):
    """Any text. Where a pattern occurs in it, its format follows."""

    type: Literal["dispatch"]
    rules: tuple[tuple[Text, "Format"], ...] = Field(min_length=1)
    loop: bool = True
    """Any text follows the format, in which there may be patterns again."""
    excludes: tuple[Text, ...] = ()


class TokenDispatch(_Fields):
    """The same with tokens in place of texts."""

    type: Literal["token_dispatch"]
    token_rules: tuple[tuple[TokenName, "Format"], ...] = Field(alias="rules", min_length=1)
    loop: bool = True
    exclude_tokens: tuple[TokenName, ...] = ()

    @property
    def rules(self) -> "tuple[tuple[Token, Format], ...]":
        return tuple((Token(token=token), form) for token, form in self.token_rules)

    @property
    def excludes(self) -> tuple[Token, ...]:
        return _tokens(self.exclude_tokens)


def _tokens(names: tuple[TokenName, ...]) -> tuple[Token, ...]:
    return tuple(Token(token=name) for name in names)


Leaf = ConstString | JsonSchema | AnyText | Token | AnyTokens | Grammar | Regex
"""Formats that have no others in them."""
Format = Annotated[
    Leaf
    | Sequence
    | Or
    | Tag
    | TriggeredTags
    | TokenTriggeredTags
    | TagsWithSeparator
    | Some
    | Repeat
    | Dispatch
    | TokenDispatch,
    Field(discriminator="type"),
]


class StructuralTag(_Fields):
    """What an answer is."""

    type: Literal["structural_tag"] = "structural_tag"
    format: Format


class _Structure(BaseModel):
    begin: str
    json_schema: dict[str, Any] = Field(alias="schema")
    end: str


class _Structures(BaseModel):
    """The older form of a structural tag: that of `TriggeredTags` whose tags have JSON in them."""

    structures: tuple[_Structure, ...]
    triggers: tuple[Text, ...]

    def as_format(self) -> TriggeredTags:
        tags = [
            Tag(
                begin=each.begin,
                content=JsonSchema(type="json_schema", json_schema=each.json_schema),
                end=each.end,
            )
            for each in self.structures
        ]
        return TriggeredTags(type="triggered_tags", triggers=self.triggers, tags=tuple(tags))


def read_format(text: str) -> Format:
    """The format of a structural tag, given as JSON in the newer form or the older one.

    Raises `GrammarError`, which names the part that is wrong.
    """
    try:
        if "format" not in json.loads(text):
            return _Structures.model_validate_json(text).as_format()
        return StructuralTag.model_validate_json(text).format
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise GrammarError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
