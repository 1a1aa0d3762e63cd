import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ops.model_directory.settings import SHIPPED_MODEL
from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError
from tokenizer_svc.model.files import template_source
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.templates.template import ChatTemplate, Rendering
from tokenizer_svc.templates.tools_as_text import Spelling, as_text

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
JSON = Spelling("[", '{"name": "$name", "arguments": $arguments}', ", ", "]", foreign=True)
TOOLS = [{"type": "function", "function": {"name": "clock"}}]
ASKED = {"role": "user", "content": "Late?"}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "Noon."}
CHAT = [
    {"role": "system", "content": 'Be <brief> & "kind".'},
    {"role": "user", "content": "Grüße {{ 7 * 7 }} {% raw %}"},
    {"role": "assistant", "content": "  yes\n"},
    {"role": "user", "content": "more"},
]
TEMPLATES = {
    "plain": "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m.content }}{{ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "indented": """{% for message in messages %}
    {% if message.role == 'system' %}
        {{ message.content | trim }}
    {%- else %}
        {{- '[' + message['role'] | upper + '] ' }}{{ message.content }}
    {% endif %}
{% endfor %}""",
    "tojson": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }} "
    "{{ 'é<' | tojson(ensure_ascii=True) }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ ns.n }} {{ dict(a=1) }}",
    "loopcontrols": "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.content }}"
    "{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "tools": "{% if tools is none and not documents %}none{% endif %}{{ strftime_now('%Y') }}"
    "{% if system_prompt is defined %}never{% endif %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_as_transformers_renders_it(byte_level: TextModel, name: str) -> None:
    theirs: Any = PreTrainedTokenizerFast(tokenizer_object=byte_level.tokenizer, **TOKENS)  # type: ignore[no-untyped-call]
    theirs.chat_template = TEMPLATES[name]
    expected = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate(TEMPLATES[name], TOKENS).render(CHAT) == expected


@pytest.mark.parametrize("last", [{"role": "assistant", "content": " It is  "}, CHAT[-1]])
@pytest.mark.parametrize("name", ["plain", "indented", "generation", "documents", "trimmed"])
def test_messages_that_go_on_and_documents_as_transformers_has_them(
    byte_level: TextModel, name: str, last: dict[str, str]
) -> None:
    more = {
        "documents": "{% for d in documents %}<{{ d.title }}>{% endfor %}" + TEMPLATES["plain"],
        "trimmed": "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}",
    }
    source = {**TEMPLATES, **more}[name]
    theirs: Any = PreTrainedTokenizerFast(tokenizer_object=byte_level.tokenizer, **TOKENS)  # type: ignore[no-untyped-call]
    theirs.chat_template = source
    documents = [{"title": "A", "text": "b"}, {"title": "C", "text": "d"}]
    for goes_on in (False, True):
        expected = theirs.apply_chat_template(
            [*CHAT, last], tokenize=False, documents=documents, continue_final_message=goes_on
        )
        asked = Rendering(False, goes_on, documents)
        assert ChatTemplate(source, TOKENS).render([*CHAT, last], rendering=asked) == expected


PARTS = {
    "chosen": "{% for m in messages %}{{ m['role'].upper() }}: {% for part in m['content'] "
    "| selectattr('type', 'equalto', 'text') %}{{ part['text'] }} {% endfor %}{% endfor %}",
    "first": "{% for m in messages %}{{ m['role'] }}{% if m['content'][0]['type'] == 'image' %}:{% else %}: "
    "{% endif %}{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}<image>{% endif %}{% endfor %}{{ '\n' }}{% endfor %}",
}
"""Templates of models that also see, which show nothing of a message that is plain text."""


@pytest.mark.parametrize("name", PARTS)
def test_templates_that_take_texts_in_parts(byte_level: TextModel, name: str) -> None:
    theirs: Any = PreTrainedTokenizerFast(tokenizer_object=byte_level.tokenizer, **TOKENS)  # type: ignore[no-untyped-call]
    theirs.chat_template = PARTS[name]
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in CHAT]
    expected = theirs.apply_chat_template(parts, tokenize=False, add_generation_prompt=True)
    assert CHAT[0]["content"] in expected
    assert ChatTemplate(PARTS[name], TOKENS).render(CHAT) == expected


def test_a_message_in_parts_goes_on_and_one_without_content_is_empty() -> None:
    template = ChatTemplate(PARTS["first"], TOKENS)
    goes_on = Rendering(add_generation_prompt=False, continue_final_message=True)
    assert template.render([CHAT[3], CHAT[2]], rendering=goes_on) == "user: more\nassistant:   yes\n"
    nothing: dict[str, Any] = {"role": "assistant", "content": None}
    assert template.render([nothing, CHAT[3]]) == "assistant: \nuser: more\n"
    tells = "{% if m.content is none %}nothing{% else %}{{ m.content[0].text }}{% endif %}"
    template = ChatTemplate("{% for m in messages %}" + tells + "{% endfor %}", TOKENS)
    assert template.render([nothing, CHAT[3]]) == "nothingmore"


def test_text_stays_text_where_a_template_also_takes_parts() -> None:
    both = (
        "{% for m in messages %}{{ 'text' if m.content is string else 'parts' }}{{ m.content }}{% endfor %}"
    )
    assert ChatTemplate(both, TOKENS).render([CHAT[3]]) == "textmore"
    refuses = "{% for m in messages %}{% if m.role != 'system' %}{{ raise_exception('no') }}{% endif %}"
    refuses += "{{ m.content }}{% endfor %}"
    assert ChatTemplate(refuses, TOKENS).render([CHAT[0]]) == CHAT[0]["content"]


def test_a_last_message_that_cannot_go_on() -> None:
    asked = Rendering(False, True)
    with pytest.raises(InvalidRequestError, match="leaves out") as refused:
        ChatTemplate("{{ messages[0].content }}", TOKENS).render(CHAT, rendering=asked)
    assert refused.value.param == "continue_final_message"
    with pytest.raises(InvalidRequestError, match="no content"):
        ChatTemplate("x", TOKENS).render([{"role": "assistant", "content": None}], rendering=asked)


def test_tokens_of_the_shipped_model_as_transformers_has_them(shipped: TextModel, encode_chat: Any) -> None:
    theirs = AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert encode_chat(shipped, CHAT) == expected
    assert shipped.encode("Once <|end|> upon", special=True) == theirs("Once <|end|> upon").input_ids
    assert shipped.end_tokens == (theirs.eos_token_id,)


def test_the_time_is_the_template_s_to_use() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}).render(CHAT) == datetime.now().strftime("%Y")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content + 1 }}",
        "{{ 1 / 0 }}",
    ],
)
def test_nothing_gets_out_of_the_sandbox(source: str) -> None:
    template = ChatTemplate(source, TOKENS)
    with pytest.raises(InvalidRequestError) as caught:
        template.render(CHAT)
    assert caught.value.param == "messages"


def test_what_is_added_to_a_safe_text_is_not_escaped() -> None:
    template = ChatTemplate("{{ 'Use '|safe + messages[0]|tojson + '<b>' }}", {})
    assert template.render([{"role": "user", "content": "a < b"}]) == (
        'Use {"role": "user", "content": "a < b"}<b>'
    )


def test_a_conversation_is_data(byte_level: TextModel, encode_chat: Any) -> None:
    text = byte_level.tokenizer.decode(encode_chat(byte_level, CHAT[1:2]), skip_special_tokens=False)
    assert text == "<s>[user] Grüße {{ 7 * 7 }} {% raw %}\n[assistant]"


def test_a_template_that_is_none() -> None:
    with pytest.raises(ModelDirectoryError, match="does not compile"):
        ChatTemplate("{% for %}", {})


def test_where_templates_are_found(byte_level: TextModel, tmp_path: Path) -> None:
    byte_level.tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TextModel.load(tmp_path).template is None
    (tmp_path / "additional_chat_templates").mkdir()
    named = '{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}'
    for file, content, expected in (
        ("chat_template.json", '{"chat_template": "v"}', "v"),
        ("tokenizer_config.json", named, "d"),
        ("additional_chat_templates/rag.jinja", "r", "d"),
        ("chat_template.jinja", "j", "j"),
        ("additional_chat_templates/default.jinja", "a", "a"),
    ):
        (tmp_path / file).write_text(content)
        assert TextModel.load(tmp_path).template == expected, file
    assert TextModel.load(tmp_path).tool_template is None
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("t")
    assert (TextModel.load(tmp_path).template, TextModel.load(tmp_path).tool_template) == ("a", "t")


def test_the_processors_template_is_that_of_a_model_that_sees(tmp_path: Path) -> None:
    """Older files of LLaVA have one for text alone beside it."""
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "text alone"}')
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    assert template_source(tmp_path) == "text alone"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "images"}')
    assert template_source(tmp_path) == "images"
    (tmp_path / "config.json").write_text("{}")
    assert template_source(tmp_path) == "text alone"
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    (tmp_path / "chat_template.jinja").write_text("a file of its own")
    assert template_source(tmp_path) == "a file of its own"


def test_a_template_for_functions_is_one_of_several(byte_level: TextModel, tmp_path: Path) -> None:
    byte_level.tokenizer.save(str(tmp_path / "tokenizer.json"))
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    model = TextModel.load(tmp_path)
    assert (model.template, model.tool_template) == ("d", "t")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named[:1]}))
    model = TextModel.load(tmp_path)
    assert (model.template, model.tool_template) == (None, None), "there is none for other conversations"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("chat_template.jinja", b"\xff\xfe", "cannot be read"),
        ("chat_template.json", b"[]", "is not a JSON object"),
        ("tokenizer_config.json", b'{"chat_template": 7}', "int is no text"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}', "a name and a template"),
        ("config.json", b'{"vocab_size": "many"}', "vocab_size: 'many' is not"),
        ("generation_config.json", b'{"eos_token_id": ["</s>"]}', "is not a token id or a list"),
    ],
)
def test_a_file_that_is_wrong_is_named(
    byte_level: TextModel, tmp_path: Path, file: str, content: bytes, message: str
) -> None:
    byte_level.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelDirectoryError, match=message) as caught:
        TextModel.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_tokens_of_old_checkpoints_have_their_names_elsewhere(
    byte_level: TextModel, tmp_path: Path, encode_chat: Any
) -> None:
    byte_level.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "special_tokens_map.json").write_text(
        '{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}'
    )
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}a{{ eos_token }}")
    model = TextModel.load(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert encode_chat(model, CHAT) == theirs.apply_chat_template(CHAT, return_dict=False)
    assert model.end_tokens == (1,)


def calling(arguments: object, content: str | None = None) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def test_functions_are_told_as_text_where_the_template_knows_none() -> None:
    knows, knows_none = "{{ tools | tojson }} {{ messages[0].content }}", "{{ messages[0].content }}"
    asked = [{"role": "user", "content": "hi"}]
    assert ChatTemplate(knows, TOKENS, JSON).render(asked, tools=TOOLS).endswith("}}] hi")
    told = ChatTemplate(knows_none, TOKENS, JSON).render(asked, tools=TOOLS)
    assert told == as_text(asked, TOOLS, JSON)[0]["content"] != "hi"
    assert ChatTemplate(knows_none, TOKENS).render(asked, tools=TOOLS) == "hi"


def test_a_template_that_names_tools_and_shows_none() -> None:
    """As that of Phi-4-mini, which looks for them in the system message."""
    source = "{% for m in messages %}{{ m.content }}{{ m['tools'] if 'tools' in m }}{% endfor %}"
    told = ChatTemplate(source, TOKENS, JSON).render([{"role": "user", "content": "hi"}], tools=TOOLS)
    assert told.endswith('"clock"}\n\nhi')


def test_calls_are_shown_by_a_template_that_shows_no_functions() -> None:
    """As those of DeepSeek, which also want arguments as text, and write calls where the content is none."""
    source = (
        "{% for m in messages %}{% if m.tool_calls and m['content'] is none %}"
        "{{ '|' + m.tool_calls[0].function.name + ' ' + m.tool_calls[0].function.arguments }}"
        "{% else %}{{ '|' + m.content }}{% endif %}{% endfor %}"
    )
    template = ChatTemplate(source, TOKENS, JSON)
    for content in (None, ""):
        told = template.render([ASKED, calling({"at": "Köln"}, content), RESULT], tools=TOOLS)
        assert told == f'|{JSON.instruction}{{"name": "clock"}}\n\nLate?|clock {{"at": "Köln"}}|Noon.'
    assert template.render([ASKED, calling("no JSON"), RESULT]) == "|Late?|clock no JSON|Noon."


def test_arguments_are_no_python() -> None:
    plain = "{% for m in messages %}{{ m.tool_calls[0].function if m.tool_calls }}{% endfor %}"
    source = plain.replace("function", "function.name ~ m.tool_calls[0].function.arguments")
    assert ChatTemplate(source, TOKENS).render([ASKED, calling({"a": True}), RESULT]) == 'clock{"a": true}'
    source = plain.replace("function", "function.name ~ m.tool_calls[0].function.arguments | tojson")
    assert ChatTemplate(source, TOKENS).render([ASKED, calling({"a": True}), RESULT]) == 'clock{"a": true}'


def test_a_text_beside_thoughts_and_calls_joins_the_thoughts_where_the_template_refuses_it() -> None:
    """As that of gpt-oss does, whose models write all three."""
    source = (
        "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}"
        "{{ raise_exception('Cannot pass both') }}{% endif %}"
        "|{{ m.thinking }}/{{ m.content }}/{{ m.tool_calls[0].function.name if m.tool_calls }}{% endfor %}"
    )
    thought = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "Hm.")
    template, whole = ChatTemplate(source, TOKENS), {**calling({}, "I look."), **thought}
    assert template.render([ASKED, whole, RESULT]) == "|/Late?/|Hm.\n\nI look.//clock|/Noon./"
    assert template.render([ASKED, calling({}, "I look."), RESULT]) == "|/Late?/|/I look./clock|/Noon./"
    taking = ChatTemplate(source.replace("raise_exception('Cannot pass both')", "''"), TOKENS)
    assert taking.render([ASKED, whole, RESULT]) == "|/Late?/|Hm./I look./clock|/Noon./"


def test_calls_and_results_that_a_template_refuses_are_told() -> None:
    refusing = (
        "{% for m in messages %}{{ raise_exception('unknown role: tool') if m.role == 'tool' }}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    turn = [ASKED, calling({}), RESULT]
    told = ChatTemplate(refusing, {}, JSON).render(turn)
    assert told.endswith('<assistant>[{"name": "clock", "arguments": {}}]<user>Result of clock: Noon.')
    with pytest.raises(InvalidRequestError, match="unknown role: tool"):
        ChatTemplate(refusing, {}).render(turn)


EACH = "{% for m in messages %}|{{ m.role }}:{{ m.content }}{% endfor %}"
LATER: list[dict[str, Any]] = [
    {"role": "system", "content": "a"},
    ASKED,
    {"role": "system", "content": "b"},
    ASKED,
]


def refusing(when: str) -> str:
    return f"{{% for m in messages %}}{{{{ raise_exception('no, ' ~ m.role) if {when} }}}}{{% endfor %}}"


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        (EACH, "|system:a|user:Late?|system:b|user:Late?"),
        ("{{ messages | length }}", "4"),
        (
            refusing("m.role == 'system' and not loop.first") + EACH,
            "|system:a|user:Late?|user:<system-reminder>\nb\n</system-reminder>|user:Late?",
        ),
        (
            EACH.replace("|{{", "{% if m.role != 'system' or loop.first %}|{{").replace(
                "{% endfor", "{% endif %}{% endfor"
            ),
            "|system:a|user:Late?|user:<system-reminder>\nb\n</system-reminder>|user:Late?",
        ),
        (
            refusing("not loop.first and m.role == loop.previtem.role")
            + refusing("m.role == 'system' and not loop.first")
            + EACH,
            "|system:a|user:Late?\n\n<system-reminder>\nb\n</system-reminder>\n\nLate?",
        ),
        (
            refusing("m.role == 'system'") + EACH,
            "|user:a|user:Late?|user:<system-reminder>\nb\n</system-reminder>|user:Late?",
        ),
    ],
    ids=["taken", "not shown", "later ones refused", "later ones left out", "turns", "no systems"],
)
def test_system_messages_as_the_template_takes_them(source: str, rendered: str) -> None:
    """What is taken and shown, or never shown, stays as it is."""
    assert ChatTemplate(source, TOKENS).render(LATER) == rendered


def test_a_text_behind_a_result_is_part_of_it_where_the_template_wants_turns() -> None:
    """As those of Mistral, which leave calls and results out of account."""
    wants = "m.role == 'user' and not loop.first and loop.previtem.role == 'tool'"
    chat = [ASKED, calling({}), RESULT, {"role": "user", "content": "And now?"}]
    calls = EACH.replace("{{ m.content }}", "{{ m.tool_calls | tojson if m.tool_calls else m.content }}")
    assert ChatTemplate(calls, TOKENS).render(chat).endswith("|tool:Noon.|user:And now?")
    taken = ChatTemplate(refusing(wants) + calls, TOKENS).render(chat)
    assert taken.endswith("|tool:Noon.\n\nAnd now?")


LOOKS = (
    "{% for t in tools %}{{ '// ' + t.function.description }}|{{ t.function.parameters | tojson }}"
    "{% for name, p in t.function.parameters.properties.items() if p.enum and p.default is defined %}"
    "{{ '=' + p.default }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ({}, '// |{"type": "object", "properties": {}}'),
        ({"description": None, "parameters": None}, '// |{"type": "object", "properties": {}}'),
        (
            {"description": "Tells.", "parameters": {"properties": {"a": {"enum": [1], "default": 1}}}},
            '// Tells.|{"properties": {"a": {"enum": [1]}}}',
        ),
        (
            {"description": "Tells.", "parameters": {"properties": {"a": {"enum": ["b"], "default": "b"}}}},
            '// Tells.|{"properties": {"a": {"enum": ["b"], "default": "b"}}}=b',
        ),
    ],
)
def test_functions_that_lack_what_the_template_looks_into(function: dict[str, Any], told: str) -> None:
    """As those of gpt-oss, Apertus and Hermes do. Others show functions as the client sent them."""
    tools = [{"type": "function", "function": {"name": "clock", **function}}]
    assert ChatTemplate(LOOKS + EACH, {}).render([ASKED], tools=tools) == f"{told}|user:Late?"
    shown = ChatTemplate("{{ tools | tojson }}", {}).render([ASKED], tools=tools)
    assert shown == json.dumps(tools)


FOLLOWS_CALL = (
    "{% set ns = namespace(called=false) %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set ns.called = m.tool_calls is defined %}{% elif m.role == 'tool' and not ns.called %}"
    "{{ raise_exception('there was no call') }}{% endif %}|{{ m.role }}:{{ m.content or '' }}{% endfor %}"
)
"""As gpt-oss and MiniMax M2."""


@pytest.mark.parametrize(
    ("chat", "told"),
    [
        (
            [ASKED, calling({}), {"role": "assistant", "content": "Wait."}, RESULT],
            "|assistant:Wait.|tool:Noon.",
        ),
        ([ASKED, {"role": "assistant", "content": "Wait."}, RESULT], "|assistant:Wait.|user:Result: Noon."),
    ],
)
def test_results_that_do_not_follow_their_calls(chat: list[dict[str, Any]], told: str) -> None:
    assert ChatTemplate(FOLLOWS_CALL, {}).render(chat) == f"|user:Late?{told}"
    apart = "".join(f"|{message['role']}:{message['content'] or ''}" for message in chat)
    taking = FOLLOWS_CALL.replace("raise_exception('there was no call')", "''")
    assert ChatTemplate(taking, {}).render(chat) == apart


def test_ids_of_other_servers_that_the_template_refuses() -> None:
    """As those of Mistral."""
    ids = "{{ m.tool_call_id }}{{ m.tool_calls[0].id if m.tool_calls }}"
    chat = [ASKED, calling({}), RESULT, LATER[2], ASKED]
    source = EACH.replace("{{ m.content }}", f"{ids}/{{{{ m.content or '' }}}}")
    assert "|assistant:1/|tool:1/Noon.|system" in ChatTemplate(source, {}).render(chat)
    refuses = refusing(
        "(m.tool_call_id or m.tool_calls) and (m.tool_call_id or m.tool_calls[0].id)|length != 9"
    )
    no_systems = refusing("m.role == 'system'")
    for more, then in (("", "|system:/b|user:/Late?"), (no_systems, "|user:/<system-reminder>")):
        text = ChatTemplate(refuses + more + source, {}).render(chat)
        found = re.fullmatch(r"\|user:/Late\?\|assistant:(\w{9})/\|tool:(\w{9})/Noon\.(.*)", text, re.DOTALL)
        assert found is not None
        assert found[1] == found[2]
        assert found[3].startswith(then)


def test_what_nothing_helps_is_refused_in_the_template_s_first_words() -> None:
    source = refusing("m.role == 'system' and not loop.first") + refusing("m.role == 'user'") + EACH
    with pytest.raises(InvalidRequestError, match="refuses this: no, system"):
        ChatTemplate(source, TOKENS).render(LATER)
    with pytest.raises(InvalidRequestError, match="refuses this: no, user"):
        ChatTemplate(source, TOKENS).render([ASKED])


def test_calls_of_a_message_that_are_shown_one_by_one() -> None:
    """As those of Llama 3 and gpt-oss."""
    first = EACH.replace("{{ m.content }}", "{{ m.tool_calls[0].id if m.tool_calls else m.content }}")
    several = "m.tool_calls and m.tool_calls | length > 1"
    one = calling({})
    both = {**one, "tool_calls": [{**call, "id": id_} for call in one["tool_calls"] for id_ in "12"]}
    chat = [ASKED, both, RESULT, {**RESULT, "tool_call_id": "2", "content": "One."}]
    source = first.replace("tool_calls[0].id", "tool_calls[0].function.arguments.city")
    for given in (source, refusing(several) + source):
        shown = [
            {**call, "function": {"name": "clock", "arguments": {"city": call["id"]}}}
            for call in both["tool_calls"]
        ]
        text = ChatTemplate(given, TOKENS).render([ASKED, {**both, "tool_calls": shown}, *chat[2:]])
        assert text == "|user:Late?|assistant:1|tool:Noon.|assistant:2|tool:One."


def test_a_text_behind_several_calls_is_shown_where_none_is_beside_calls() -> None:
    """As by Llama 3's template. gpt-oss's refuses such a text before the results."""
    city = "{{ m.tool_calls[0].function.arguments.city if m.tool_calls else m.content }}"
    source, (call,) = EACH.replace("{{ m.content }}", city), calling({})["tool_calls"]
    calls = [{**call, "id": id_, "function": {"name": "f", "arguments": {"city": id_}}} for id_ in "12"]
    results = [{**RESULT, "tool_call_id": id_, "content": f"Of {id_}."} for id_ in "12"]
    said = {"role": "assistant", "content": "Wait."}
    chat = [ASKED, {**calling({}), "tool_calls": calls}, said, *results]
    assert ChatTemplate(source, TOKENS).render(chat) == (
        "|user:Late?|assistant:1|assistant:2|assistant:Wait.|tool:Of 1.|tool:Of 2."
    )
    refuses = refusing("m.role == 'tool' and not loop.previtem.tool_calls")
    assert ChatTemplate(refuses + source, TOKENS).render(chat) == (
        "|user:Late?|assistant:1|tool:Of 1.|assistant:2|tool:Of 2."
    )


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ('{"city": "Os', '{"arguments": "{\\"city\\": \\"Os"}'),
        ("[1]", '{"arguments": "[1]"}'),
        ("null", "{}"),
        ("  ", "{}"),
        ({"at": 1}, '{"at": 1}'),
    ],
)
def test_arguments_that_are_no_object(given: object, taken: str) -> None:
    """As those of Qwen3-Coder, which go through the pairs."""
    pairs = "{% for k in a | items %}{% endfor %}"
    source = (
        "{% for m in messages if m.tool_calls %}{% set a = m.tool_calls[0].function.arguments %}"
        f"{pairs}{{{{ a | tojson }}}}{{% endfor %}}"
    )
    assert ChatTemplate(source, TOKENS).render([ASKED, calling(given), RESULT]) == taken
    assert ChatTemplate(source.replace(pairs, ""), TOKENS).render(
        [ASKED, calling(given), RESULT]
    ) == json.dumps(given)


def test_messages_in_a_row_go_on() -> None:
    goes_on = Rendering(add_generation_prompt=False, continue_final_message=True)
    chat = [ASKED, {"role": "assistant", "content": "It"}, {"role": "assistant", "content": "is "}]
    source = refusing("not loop.first and m.role == loop.previtem.role") + EACH
    assert ChatTemplate(source, TOKENS).render(chat, rendering=goes_on) == "|user:Late?|assistant:It\n\nis "


@pytest.mark.parametrize("count", [1, 2])
def test_a_message_with_calls_goes_on_at_the_end_of_its_text(count: int) -> None:
    """Whether the template shows a text beside calls or not, as that of Llama 3, which takes one call."""
    goes_on = Rendering(add_generation_prompt=False, continue_final_message=True)
    one = calling({"city": "Oslo"}, "I look")
    chat = [ASKED, {**one, "tool_calls": one["tool_calls"] * count}]
    calls = "{{ m.tool_calls[0].function.arguments.city if m.tool_calls }}"
    beside = EACH.replace("{{ m.content }}", "{{ m.content }}" + calls)
    instead = EACH.replace(
        "{{ m.content }}", "{% if m.tool_calls %}" + calls + "{% else %}{{ m.content }}{% endif %}"
    )
    several = refusing("m.tool_calls and m.tool_calls | length > 1")
    for source in (EACH, beside, instead, several + beside, several + instead):
        text = ChatTemplate(source, TOKENS).render(chat, rendering=goes_on)
        assert text == "|user:Late?|assistant:I look"


def test_tools_and_messages_without_content() -> None:
    turns = [{"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": {"a": 1}}}]}]
    source = (
        "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{{ m.tool_calls[0] | tojson }}{% endfor %}"
    )
    expected = '[{"name": "f"}]{"function": {"arguments": {"a": 1}}}'
    assert ChatTemplate(source, {}).render(turns, {}, [{"name": "f"}]) == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("m.content if m.content is not none", ""),
        ("'no' if m['content'] is none else m.content", "no"),
        ("m.content", ""),
        ("'' if '</think>' in m.content or m.reasoning_content is not none else 1", ""),
    ],
    ids=["none is none", "only none is none", "prints none", "looks into it"],
)
@pytest.mark.parametrize("given", [None, ""])
def test_a_call_has_the_content_that_the_template_takes(content: str, said: str, given: str | None) -> None:
    """The last one is as that of Qwen3, which takes no none, and asks whether another field is none."""
    shown = f"{{{{ {content} }}}}{{{{ m.tool_calls | tojson if m.tool_calls }}}}"
    template = ChatTemplate(f"{{% for m in messages %}}{shown}{{% endfor %}}", {}, JSON)
    calls = json.dumps(calling({"at": 1})["tool_calls"])
    assert template.render([calling({"at": 1}, given)]) == said + calls
