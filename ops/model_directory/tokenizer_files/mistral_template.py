"""Chat templates of Mistral's models, by the version of their tokenizer.

Mistral publishes no templates with tekken.json: its library mistral-common makes tokens of conversations.
These templates spell them as it does. Messages of a role in a row are one, joined by an empty line, with all
calls at the end. Versions differ:

    v7     functions before the last question; calls are a list; results have the calls' ids
    v11    a call has a mark of its own, its name, its id and its arguments; results are in the order of calls
    v13    functions before the first question; neither calls nor results have ids; thoughts, if the tokenizer
           has marks for them
"""

from collections.abc import Collection

THOUGHT_MARKS = ("[THINK]", "[/THINK]")

_PARTS = """
{%- macro add(run, content) %}
    {%- for part in ([{'type': 'text', 'text': content}] if content is string else content or []) %}
        {%- set text = part.text if part.type == 'text' else '' %}
        {%- if text and run.parts and run.parts[-1].type == 'text' %}
            {%- set text = run.parts[-1].text ~ '\n\n' ~ text %}
            {%- set run.parts = run.parts[:-1] + [{'type': 'text', 'text': text}] %}
        {%- elif text or part.type != 'text' %}
            {%- set run.parts = run.parts + [part] %}
        {%- endif %}
    {%- endfor %}
{%- endmacro %}
{%- macro show(run) %}
    {%- for part in run.parts %}
        {{- part.text if part.type == 'text' else '[IMG]' }}
    {%- endfor %}
    {%- set run.parts = [] %}
{%- endmacro %}
{%- macro show_tools() %}
    {{- '[AVAILABLE_TOOLS][' }}
    {%- for tool in tools %}
        {%- set it = tool.function %}
        {%- set told = {'name': it.name, 'description': it.description or ''} %}
        {%- set told = dict(told, parameters=it.parameters or {}) %}
        {{- {'type': 'function', 'function': told} | tojson ~ ('' if loop.last else ', ') }}
    {%- endfor %}
    {{- '][/AVAILABLE_TOOLS]' }}
{%- endmacro %}"""

_CALLS_IN_LIST = """
{%- macro show_calls(run) %}
    {{- '[TOOL_CALLS][' }}
    {%- for call in run.calls %}
        {%- set it = {'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id} %}
        {{- it | tojson ~ ('' if loop.last else ', ') }}
    {%- endfor %}
    {{- ']' }}
{%- endmacro %}"""
_CALLS_WITH_IDS = """
{%- macro show_calls(run) %}
    {%- for call in run.calls %}
        {{- '[TOOL_CALLS]' ~ call.function.name ~ '[CALL_ID]' ~ call.id }}
        {{- '[ARGS]' ~ call.function.arguments | tojson }}
    {%- endfor %}
{%- endmacro %}"""
_CALLS = """
{%- macro show_calls(run) %}
    {%- for call in run.calls %}
        {{- '[TOOL_CALLS]' ~ call.function.name ~ '[ARGS]' ~ call.function.arguments | tojson }}
    {%- endfor %}
{%- endmacro %}"""

_RESULT_WITH_ID = """
{%- macro show_result(run, result) %}
    {{- add(run, result.content) }}
    {{- '[TOOL_RESULTS]' ~ result.tool_call_id ~ '[TOOL_CONTENT]' ~ show(run) ~ '[/TOOL_RESULTS]' }}
{%- endmacro %}"""
_RESULT = """
{%- macro show_result(run, result) %}
    {{- add(run, result.content) }}
    {{- '[TOOL_RESULTS]' ~ show(run) ~ '[/TOOL_RESULTS]' }}
{%- endmacro %}"""
_RESULTS = """
{%- macro show_results(run) %}
    {%- for id in run.asked | unique %}
        {%- for result in run.results if result.tool_call_id == id %}
            {{- show_result(run, result) }}
        {%- endfor %}
    {%- endfor %}
    {%- for result in run.results if result.tool_call_id not in run.asked %}
        {{- show_result(run, result) }}
    {%- endfor %}
    {%- set run.asked = [] %}
    {%- set run.results = [] %}
{%- endmacro %}"""
_ORDER = """
            {%- set run.asked = run.asked + run.calls | map(attribute='id') | list %}"""

_ADD_THOUGHT = """
        {%- if message.reasoning_content %}
            {%- set run.parts = run.parts + [{'type': 'thought', 'text': message.reasoning_content}] %}
        {%- endif %}"""
_SHOW_THOUGHT = """
                {%- if part.type == 'thought' %}
                    {{- '[THINK]' ~ part.text ~ '[/THINK]' }}
                    {%- continue %}
                {%- endif %}"""

_MESSAGES = """
{%- set run = namespace(role='', parts=[], calls=[], results=[], asked=[], place_of_tools=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' and run.role != 'user'PLACE %}
        {%- set run.place_of_tools = loop.index0 %}
    {%- endif %}
    {%- set run.role = message.role %}
{%- endfor %}
{{- bos_token }}
{%- for message in messages %}
    {%- set ends = loop.last or loop.nextitem.role != message.role %}
    {%- if message.role == 'system' %}
        {{- add(run, message.content) }}
        {{- '[SYSTEM_PROMPT]' ~ show(run) ~ '[/SYSTEM_PROMPT]' }}
    {%- elif message.role == 'user' %}
        {%- if tools and loop.index0 == run.place_of_tools %}
            {{- show_tools() }}
        {%- endif %}
        {{- add(run, message.content) }}
        {%- if ends %}
            {%- if run.parts | length == 2 and run.parts[0].type == 'text' %}
                {%- set run.parts = run.parts[::-1] %}
            {%- endif %}
            {{- '[INST]' ~ show(run) ~ '[/INST]' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}ADD_THOUGHT
        {{- add(run, message.content) }}
        {%- set run.calls = run.calls + (message.tool_calls or []) %}
        {%- if ends %}
            {%- for part in run.parts %}SHOW_THOUGHT
                {{- part.text.rstrip(' ') if run.parts | length == 1 else part.text }}
            {%- endfor %}
            {{- show_calls(run) if run.calls }}
            {{- eos_token }}ORDER
            {%- set run.calls = [] %}
            {%- set run.parts = [] %}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {%- set run.results = run.results + [message] %}
        {%- if ends %}
            {{- show_results(run) }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('there is no role ' ~ message.role) }}
    {%- endif %}
{%- endfor %}"""

_VERSIONS = {
    "v7": (_CALLS_IN_LIST, _RESULT_WITH_ID, "", ""),
    "v11": (_CALLS_WITH_IDS, _RESULT_WITH_ID, _ORDER, ""),
    "v13": (_CALLS, _RESULT, _ORDER, " and run.place_of_tools < 0"),
}
"""How calls and results are spelled, what puts results in order, and what keeps the functions at the first
question."""


def template_of(version: str, special: Collection[str]) -> str | None:
    """The chat template of a version; None if the version is not known.

    `special`: texts of the tokenizer's special tokens.
    """
    if version not in _VERSIONS:
        return None
    calls, result, order, place = _VERSIONS[version]
    thinks = version == "v13" and all(mark in special for mark in THOUGHT_MARKS)
    messages = (
        _MESSAGES.replace("PLACE", place)
        .replace("ORDER", order)
        .replace("ADD_THOUGHT", _ADD_THOUGHT if thinks else "")
        .replace("SHOW_THOUGHT", _SHOW_THOUGHT if thinks else "")
    )
    return (_PARTS + calls + result + _RESULTS + messages).lstrip()
