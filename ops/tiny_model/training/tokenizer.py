"""A byte-level BPE tokenizer with the special tokens and the chat template of the small model."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from ops.tiny_model.training.corpus import Document

BEGIN, SYSTEM, USER, ASSISTANT, END, PAD = SPECIAL_TOKENS = (
    "<|begin|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "<|pad|>",
)
VOCAB_SIZE = 4096

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- set first = messages[0] -%}
{%- if tools -%}
{{- '<|system|>' ~ (first['content'] ~ '\\n\\n' if first['role'] == 'system' else '') ~ 'You can call:' -}}
{%- for tool in tools -%}
{{- '\\n{"name": ' ~ (tool.function.name | tojson) ~ ', "arguments": {' -}}
{%- for name, schema in ((tool.function.parameters or {}).properties or {}).items() -%}
{{- (', ' if not loop.first else '') ~ (name | tojson) ~ ': ' ~ ((schema.type or 'any') | tojson) -}}
{%- endfor -%}
{{- '}}' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endif -%}
{%- for message in messages[1 if tools and first['role'] == 'system' else 0:] -%}
{%- if message['role'] == 'tool' -%}
{{- '<|user|>Result: ' ~ message['content'] -}}
{%- elif message['role'] in ['system', 'user', 'assistant'] -%}
{{- '<|' ~ message['role'] ~ '|>' ~ (message['content'] or '') -}}
{%- else -%}
{{- raise_exception('unknown role: ' ~ message['role']) -}}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{- ('[' if loop.first else ', ') ~ '{"name": ' ~ (call.function.name | tojson) -}}
{{- ', "arguments": ' ~ (call.function.arguments | tojson) ~ ('}]' if loop.last else '}') -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""


def render(document: Document) -> str:
    """The text a document is trained on. A chat reads as CHAT_TEMPLATE would write it."""
    if isinstance(document, str):
        return f"{BEGIN}{document}{END}"
    return BEGIN + "".join(f"<|{message['role']}|>{message['content']}{END}" for message in document)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Byte-level BPE: every text has tokens. Digits stand alone, so that sums are sums of digits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # As Llama's tokenizers do: a plain prompt starts with BEGIN. The chat template writes its own.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A",
        pair=f"{BEGIN} $A {BEGIN} $B",
        special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))],
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json as AutoTokenizer reads them."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT],
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
