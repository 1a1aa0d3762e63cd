"""What templates of several makes do with functions, calls and results."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from jinja2 import Environment

from tokenizer_svc.templates.habits import THOUGHT_FIELDS, Habits, Way


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


def test_functions_in_a_form_that_clients_do_not_send() -> None:
    """As Command R+'s of 2024: it looks for the parameters where another API has them."""
    names = "{% for t in tools %}{{ t.parameter_definitions.items() }}{% endfor %}"
    assert habits("{{ refuse('tools') if tools }}" + each("{{ m.content }}")).refuses_tools
    assert not habits(each("{{ m.content }}")).refuses_tools
    assert habits(names + each("{{ m.content }}")).refuses_tools
    needs_system = "{{ refuse('system') if messages[0].role != 'system' }}"
    assert not habits(needs_system + each("{{ m.content }}")).refuses_tools


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


FIRST = "{% set first = messages[0].content if messages[0].role == 'system' %}{{ first or '' }}"
REST = each("{{ m.content if m.role != 'system' }}")
SYSTEMS = {
    "all": (each("{{ m.content }}"), (False, False, False)),
    "all in front": (
        each("{{ m.content if m.role == 'system' }}") + REST,
        (False, False, False),
    ),
    "the first one alone": (FIRST + REST, (False, True, True)),
    "the last one alone": (
        "{% set ns = namespace(s='') %}"
        + each("{% if m.role == 'system' %}{% set ns.s = m.content %}{% endif %}")
        + "{{ ns.s }}"
        + REST,
        (False, True, False),
    ),
    "none": (REST, (False, True, True)),
    "refused": (each("{{ refuse('system') if m.role == 'system' else m.content }}"), (True, False, False)),
    "later ones refused": (
        each("{{ refuse('later') if m.role == 'system' and not loop.first else m.content }}"),
        (False, False, False),
    ),
    "everything refused": ("{{ refuse('everything') }}", (False, False, False)),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_system_messages(name: str) -> None:
    source, expected = SYSTEMS[name]
    found = habits(source)
    assert (found.refuses_systems, found.leaves_out_other_systems, found.leaves_out_later_systems) == expected


def test_arguments_that_are_no_object() -> None:
    pairs = "{% for key, value in m.tool_calls[0].function.arguments | items %}{{ value }}{% endfor %}"
    letters = "{% for key in m.tool_calls[0].function.arguments %}{{ key }},{% endfor %}"
    whole = "{{ m.tool_calls[0].function.arguments | tojson }}"
    as_text = "{{ '' + m.tool_calls[0].function.arguments }}"
    for shown, wants in ((pairs, True), (letters + whole, False), (as_text, False), ("", False)):
        found = habits(each(f"{{% if m.tool_calls %}}{shown}{{% else %}}{{{{ m.content }}}}{{% endif %}}"))
        assert found.wants_an_object == wants, shown


def test_several_calls() -> None:
    shown = "{% for c in m.tool_calls %}{{ c.function.arguments.city }}{% endfor %}{{ m.content }}"
    assert not habits(each(shown)).wants_one_call
    assert habits(each(shown.replace("m.tool_calls", "(m.tool_calls or [])[:1]"))).wants_one_call
    assert habits(each("{{ refuse('several') if m.tool_calls and m.tool_calls[1] }}" + shown)).wants_one_call
    assert not habits(each("{{ refuse('any') if m.tool_calls }}" + shown)).wants_one_call
    assert not habits(each("{{ m.content }}")).wants_one_call


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
