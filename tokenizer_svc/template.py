"""Chat templates: a conversation becomes the text that its model was trained to continue.

The language is jinja2 with what Hugging Face's templates expect of it. A template comes with the
model and a conversation from anywhere, so it runs in jinja2's sandbox on plain strings.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError

NOTHING: Mapping[str, Any] = {}


class ChatTemplate:
    """One compiled template. `variables` are what it sees besides the conversation, such as bos_token."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """Raises `ModelDirectoryError` if `source` is no template."""
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ModelDirectoryError(f"the chat template does not compile: {error}") from error
        self._variables = dict(variables)

    def render(self, messages: Sequence[Mapping[str, str]], arguments: Mapping[str, Any] = NOTHING) -> str:
        """The conversation as text, ready for the answer.

        `arguments`: switches of this model's template, such as enable_thinking. Raises `InvalidRequestError`
        if the template does not accept the conversation, or an argument poses as what is given anyhow.
        """
        values: dict[str, Any] = {
            **self._variables,
            "messages": [dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }
        if taken := sorted(arguments.keys() & values.keys()):
            raise InvalidRequestError("chat_template_kwargs", f"{taken[0]} is not for a request to say")
        values.update(arguments)
        try:
            return self._template.render(values)
        # What a template refuses it says in its own words, or by failing in any way that code can.
        except Exception as error:
            raise InvalidRequestError(
                "messages", f"the model's chat template refuses this: {error}"
            ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": _PublicNamespace,
    }
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML, which models were not trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class _PublicNamespace(Namespace):
    """A namespace without underscored names, through which objects could pose as others."""

    def __init__(self, /, *attributes: Any, **named: Any) -> None:
        super().__init__()
        for name, value in dict(*attributes, **named).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no place for {name}")
        super().__setitem__(name, value)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's turns for training; the block renders its own text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
