from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ops.runtime.settings import SHIPPED_MODEL
from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError
from tokenizer_svc.template import ChatTemplate
from tokenizer_svc.tokenizer import TextModel

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
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


def test_tokens_of_the_shipped_model_as_transformers_has_them(shipped: TextModel) -> None:
    theirs = AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert shipped.encode_chat(CHAT) == expected
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


def test_a_conversation_is_data(byte_level: TextModel) -> None:
    text = byte_level.tokenizer.decode(byte_level.encode_chat(CHAT[1:2]), skip_special_tokens=False)
    assert text == "<s>[user] Grüße {{ 7 * 7 }} {% raw %}\n[assistant]"


def test_a_template_that_is_none() -> None:
    with pytest.raises(ModelDirectoryError, match="does not compile"):
        ChatTemplate("{% for %}", {})


def test_where_templates_are_found(byte_level: TextModel, tmp_path: Path) -> None:
    byte_level.tokenizer.save(str(tmp_path / "tokenizer.json"))
    chat: list[dict[str, Any]] = CHAT[:1]
    with pytest.raises(InvalidRequestError, match="no chat template"):
        TextModel.load(tmp_path).encode_chat(chat)
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
        assert TextModel.load(tmp_path).encode_chat(chat) == byte_level.encode(expected, special=False), file


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("chat_template.jinja", b"\xff\xfe", "cannot be read"),
        ("chat_template.json", b"[]", "is not a JSON object"),
        ("tokenizer_config.json", b'{"chat_template": 7}', "int is no text"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}', "a name and a template"),
        ("tokenizer_config.json", b'{"chat_template": "{% if %}"}', "does not compile"),
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


def test_tokens_of_old_checkpoints_have_their_names_elsewhere(byte_level: TextModel, tmp_path: Path) -> None:
    byte_level.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "special_tokens_map.json").write_text(
        '{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}'
    )
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}a{{ eos_token }}")
    model = TextModel.load(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert model.encode_chat(CHAT) == theirs.apply_chat_template(CHAT, return_dict=False)
    assert model.end_tokens == (1,)
