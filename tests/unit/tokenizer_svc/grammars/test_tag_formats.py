"""The fields of structural tags."""

import json
from typing import Any

import pytest

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.tag_formats import (
    AnyText,
    ConstString,
    JsonSchema,
    Sequence,
    Tag,
    TriggeredTags,
    read_format,
)


def test_a_tree_of_formats() -> None:
    tree = {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}, {"type": "any_text"}]}
    expected = Sequence(
        type="sequence", elements=(ConstString(type="const_string", value="a"), AnyText(type="any_text"))
    )
    assert read_format(json.dumps({"type": "structural_tag", "format": tree})) == expected


def test_a_tag_in_a_list_needs_no_type() -> None:
    tag = {"begin": "<a>", "content": {"type": "any_text"}, "end": ["</a>", "</b>"]}
    found = read_format(
        json.dumps({"format": {"type": "tags_with_separator", "tags": [tag], "separator": ""}})
    )
    assert found.tags[0].ends == ("</a>", "</b>")  # type: ignore[union-attr]


def test_the_older_form() -> None:
    older = {"structures": [{"begin": "<a", "schema": {"type": "integer"}, "end": ""}], "triggers": ["<"]}
    content = JsonSchema(type="json_schema", json_schema={"type": "integer"})
    tag = Tag(begin="<a", content=content, end="")
    assert read_format(json.dumps(older)) == TriggeredTags(
        type="triggered_tags", triggers=("<",), tags=(tag,)
    )


WRONG: list[tuple[Any, str]] = [
    ({"format": {"type": "any_texts"}}, "format: Input tag 'any_texts'"),
    ({"format": {"type": "exclude_token"}}, "format: Input tag 'exclude_token'"),
    ({"format": {"type": "const_string"}}, "format.const_string.value: Field required"),
    ({"format": {"type": "const_string", "value": 5}}, "format.const_string.value: "),
    ({"format": {"type": "any_text", "min_chars": 5}}, "format.any_text.min_chars: Extra inputs"),
    ({"format": {"type": "any_text", "max_chars": -1}}, "format.any_text.max_chars: "),
    ({"format": {"type": "sequence", "elements": []}}, "format.sequence.elements: "),
    (
        {"format": {"type": "json_schema", "json_schema": {}, "style": "cohere_xml"}},
        "format.json_schema.style: ",
    ),
    (
        {"format": {"type": "star", "content": {"type": "regex", "pattern": ""}}},
        "format.star.content.regex.pattern: ",
    ),
    ({"format": {"type": "any_text"}, "strict": True}, "strict: Extra inputs"),
    ({"format": {"type": "repeat", "content": {"type": "any_text"}, "min": 2, "max": 0}}, "format.repeat: "),
    ({"format": "any_text"}, "format: "),
    ({"structures": [{"begin": "<", "end": ">"}], "triggers": ["<"]}, "structures.0.schema: Field required"),
    ({"structures": [], "triggers": [1]}, "triggers.0: "),
    ({"structures": [], "triggers": ["<"]}, "tags: "),
    ({}, "structures: Field required"),
]


@pytest.mark.parametrize(("tag", "said"), WRONG)
def test_what_is_wrong_is_named(tag: Any, said: str) -> None:
    with pytest.raises(GrammarError) as refused:
        read_format(json.dumps(tag))
    assert str(refused.value).startswith(said)
