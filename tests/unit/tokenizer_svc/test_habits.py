"""What templates of several makes do with functions, calls and results."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from jinja2 import Environment

from tokenizer_svc.habits import THOUGHT_FIELDS, Habits, Way


def habits(source: str) -> Habits:
    environment = Environment()
    environment.globals["refuse"] = refuse
    return Habits(environment.from_string(source).render)


def refuse(why: str) -> None:
    raise ValueError(why)


def each(what: str) -> str:
    return f"{{% for m in messages %}}{what}{{% endfor %}}"


CALL = "m.tool_calls[0].function"
SHOWN = {
    "an object": (f"{{{{ {CALL}.arguments.city if m.tool_calls else m.content }}}}", Way(None, False, True)),
    "a text": (f"{{{{ '' + {CALL}.arguments if m.tool_calls else m.content }}}}", Way(None, True, True)),
    "as Python": (f"{{{{ {CALL}.arguments if m.tool_calls else m.content }}}}", Way(None, True, True)),
    "JSON": (f"{{{{ {CALL}.arguments | tojson if m.tool_calls else m.content }}}}", Way(None, False, True)),
    "an id": ("{{ m.tool_calls[0].id if m.tool_calls else m.content }}", Way()),
    "with its content": (
        f"{{{{ m.content }}}}{{{{ {CALL}.arguments.city if m.tool_calls }}}}",
        Way("", False, True),
    ),
    "with none": (
        f"{{% if m.content is none %}}{{{{ {CALL}.arguments.city }}}}{{% endif %}}",
        Way(None, False, True),
    ),
    "with a text": (
        f"{{{{ m.content | length }}}}{{{{ {CALL}.arguments.city if m.tool_calls }}}}",
        Way("", False, True),
    ),
    "nothing": ("{{ m.content }}", Way()),
    "never": ("{{ refuse('tools') if m.role == 'tool' else m.content }}", Way()),
}


@pytest.mark.parametrize("name", SHOWN)
def test_calls(name: str) -> None:
    source, way = SHOWN[name]
    assert habits(each(source)).calling == way


def test_functions_are_shown_with_a_template_that_wants_their_schemas() -> None:
    assert (
        habits("{% for t in tools %}{{ t.function.parameters.properties.keys() }}{% endfor %}").shows_tools
        is False
    )
    assert habits("{% for t in tools %}{{ t.function.name }}{% endfor %}").shows_tools
    assert not habits(each("{{ m.tools }}")).shows_tools


def test_none() -> None:
    assert habits(each("{{ m.content or 'nothing' }}")).takes_none
    assert not habits(each("{{ m.content }}")).takes_none
    assert not habits(each("{{ m.content | trim | length + m.content.index('') }}")).takes_none


def test_results() -> None:
    assert habits(each("{{ m.content }}")).shows_results
    assert not habits(each("{{ m.content if m.role != 'tool' }}")).shows_results
    assert not habits(each("{{ refuse('tool') if m.role == 'tool' else m.content }}")).shows_results


def test_texts_as_parts() -> None:
    parts = "{% for p in m.content if p is mapping %}{{ p.text }}{% endfor %}"
    found = habits(
        each(
            parts
            + f"{{{{ {CALL}.arguments.city if m.tool_calls }}}}{{{{ tools[0].function.name if tools }}}}"
        )
    )
    assert (found.takes_parts, found.shows_tools, found.shows_results) == (True, True, True)
    assert not habits(each("{{ m.content }}")).takes_parts


@pytest.mark.parametrize("field", THOUGHT_FIELDS)
def test_text_beside_thoughts(field: str) -> None:
    refusing = f"{{{{ refuse('both') if m.content and m.{field} and m.tool_calls }}}}{{{{ m.tool_calls }}}}"
    assert habits(each(refusing)).refuses_text_beside_thoughts
    assert not habits(each(refusing.replace("refuse('both')", "1"))).refuses_text_beside_thoughts
    assert not habits("{{ refuse('everything') }}").refuses_text_beside_thoughts


def test_a_habit_is_found_out_once() -> None:
    asked: list[Mapping[str, Any]] = []

    def render(values: Mapping[str, Any]) -> str:
        asked.append(values)
        return json.dumps(values)

    found = Habits(render)
    assert found.calling == found.calling == Way(None, False, True)
    assert len({id(values) for values in asked}) == len(asked) < 8
