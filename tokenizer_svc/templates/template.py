"""Chat templates: a conversation becomes the text that its model was trained to continue.

The language is jinja2 with what Hugging Face's templates expect of it. A template comes with the
model and a conversation from anywhere, so it runs in jinja2's sandbox on plain strings, and in a process with
bounds on time and memory: `renderer.py`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError
from tokenizer_svc.templates.conversations import (
    described,
    in_turns,
    lost_results_told,
    one_call_each,
    systems_first,
    texts_with_calls,
    with_ids_of_results,
    with_read_calls,
    with_short_ids,
)
from tokenizer_svc.templates.habits import THOUGHT_FIELDS, Habits, in_parts
from tokenizer_svc.templates.tools_as_text import Spelling, as_text, with_list

NOTHING: Mapping[str, Any] = {}
MAX_LENGTH = 4_000_000
"""Characters of a rendered conversation: twice what a prompt may have."""


@dataclass(frozen=True)
class Rendering:
    """Options with which a chat template renders a conversation."""

    add_generation_prompt: bool = True
    """The beginning of an answer follows the messages, if the template has one."""
    continue_final_message: bool = False
    """The text ends where the content of the last message does. Nothing follows it."""
    documents: Sequence[Any] = ()
    """Texts that the answer may draw on; a template that does not know of such shows none."""
    template: str = ""
    """Source of another template than the model's. Empty: that one."""


USUAL = Rendering()
_END = "END_OF_THE_FINAL_MESSAGE\t "
"""What marks the end of the message that goes on. What is left of its tab and its space shows what the
template strips from messages."""


class ChatTemplate:
    """One compiled template. `variables` are what it sees besides the conversation, such as bos_token."""

    def __init__(self, source: str, variables: Mapping[str, str], spelling: Spelling | None = None) -> None:
        """Raises `ModelDirectoryError` if `source` is no template.

        `spelling`: of what the template does not show of functions and calls, which is told as text; None: it
        is left out.
        """
        try:
            self._template = _environment().from_string(source)
        except Exception as error:  # what is constant is computed here, with all that can go wrong in it
            raise ModelDirectoryError(f"the chat template does not compile: {_line(error)}") from error
        self._variables = dict(variables)
        self._spelling = spelling
        self._habits = Habits(lambda values: self._template.render({**self._variables, **values}))

    @property
    def refuses_tools(self) -> bool:
        """The template takes no functions: they are told as text, or left out."""
        return self._habits.refuses_tools

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any] = NOTHING,
        tools: Sequence[Any] = (),
        rendering: Rendering = USUAL,
    ) -> str:
        """The conversation as text, ready for the answer. Arguments of calls are JSON, as a text or read.

        `arguments`: switches of this model's template, such as enable_thinking. `tools`: functions that the
        model may call; a template that does not know of such shows none, unless they are told as text.

        Raises `InvalidRequestError` if the template does not accept the conversation, or an argument poses as
        what is given anyhow.
        """
        continues = rendering.continue_final_message
        values: dict[str, Any] = {
            **self._variables,
            "messages": None,
            "tools": None if not tools or self.refuses_tools else list(tools),
            "documents": list(rendering.documents) or None,
            "add_generation_prompt": rendering.add_generation_prompt and not continues,
        }
        if taken := sorted(arguments.keys() & values.keys()):
            raise InvalidRequestError("chat_template_kwargs", f"{taken[0]} is not for a request to say")
        values.update(arguments)
        messages = with_read_calls(_going_on(messages) if continues else messages)
        if any(message["role"] == "tool" and "tool_call_id" not in message for message in messages):
            messages = with_ids_of_results(messages)
        text = self._rendered(values, self._told(messages, tools), continues)
        if len(text) > MAX_LENGTH:
            raise InvalidRequestError(
                "messages", f"the model's chat template makes more than {MAX_LENGTH} characters of this"
            )
        return _until_end(text) if continues else text

    def _rendered(
        self, values: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], continues: bool
    ) -> str:
        """The conversation in the first form that the template takes. `values`: what else it sees."""
        refusal: Exception | None = None
        for form, tools in self._attempts(messages, values["tools"]):
            taken = [self._as_it_expects(message) for message in form]
            if continues:
                taken[-1]["content"] = _with_end(taken[-1]["content"])
            if self._habits.takes_parts:
                taken = [in_parts(message) for message in taken]
            try:
                return self._template.render({**values, "messages": taken, "tools": tools})
            # What a template refuses it says in its own words, or by failing in any way that code can.
            except Exception as error:
                refusal = refusal or error
        assert refusal is not None
        raise InvalidRequestError(
            "messages", f"the model's chat template refuses this: {_line(refusal)}"
        ) from refusal

    def _attempts(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None
    ) -> Iterator[tuple[Sequence[Mapping[str, Any]], Sequence[Any] | None]]:
        """Forms of the conversation, with the functions as the client sent them, then with all fields."""
        for form in self._forms(messages):
            yield form, tools
        if tools and (whole := described(tools)) != tools:
            for form in self._forms(messages):
                yield form, whole

    def _forms(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
        """The conversation so that the template shows all of it, then with less that it may refuse."""
        habits = self._habits
        systems = [place for place, message in enumerate(messages) if message["role"] == "system"]
        if (len(systems) > 1 and habits.leaves_out_other_systems) or (
            any(systems) and habits.leaves_out_later_systems
        ):
            messages = systems_first(messages)
        several = any(len(message.get("tool_calls", ())) > 1 for message in messages)
        apart = several and habits.wants_one_call
        first = one_call_each(messages) if apart else messages
        yield first
        called = texts_with_calls(messages)
        called = one_call_each(called) if apart else called
        with_systems_first = systems_first(called, not habits.refuses_systems)
        turns, told = in_turns(with_systems_first), in_turns(lost_results_told(with_systems_first))
        forms = [first, called, with_systems_first, turns, told]
        forms += [with_short_ids(form) for form in forms]
        yield from (form for number, form in enumerate(forms) if form not in forms[: max(number, 1)])

    def _told(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]
    ) -> Sequence[Mapping[str, Any]]:
        """The messages, with what the template would not show of functions and calls."""
        if self._spelling is None:
            return messages
        unseen = () if not tools or self._habits.shows_tools else tools
        calls = any(message["role"] == "tool" or "tool_calls" in message for message in messages)
        if calls and not self._habits.calling.shows_calls:
            results = self._spelling.foreign or not self._habits.shows_results
            return as_text(messages, unseen, self._spelling, results)
        return with_list(messages, unseen, self._spelling) if unseen else messages

    def _as_it_expects(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message as this template takes it."""
        fields, content = dict(message), message["content"]
        if "tool_calls" not in message:
            return {**fields, "content": ""} if content is None and not self._habits.takes_none else fields
        way = self._habits.calling
        if not content:
            fields["content"] = way.content
        if way.arguments_as_text:
            fields["tool_calls"] = [_with_text(call) for call in message["tool_calls"]]
        elif self._habits.wants_an_object:
            fields["tool_calls"] = [_with_object(call) for call in message["tool_calls"]]
        thoughts = [name for name in THOUGHT_FIELDS if name in fields]
        if thoughts and content and isinstance(content, str) and self._habits.refuses_text_beside_thoughts:
            fields |= {"content": "", **{name: f"{fields[name]}\n\n{content}" for name in thoughts}}
        return fields


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call with its arguments as JSON."""
    function = call["function"]
    if isinstance(function["arguments"], str):
        return dict(call)
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call with arguments that are an object. A model may have made others."""
    function = call["function"]
    if not isinstance(text := function["arguments"], str):
        return dict(call)
    arguments = {"arguments": text} if text.strip() not in ("", "null") else {}
    return {**call, "function": {**function, "arguments": arguments}}


def _going_on(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages, the last one without its calls: they stand behind its text, where the prompt ends."""
    *before, last = messages
    return [*before, {name: value for name, value in last.items() if name != "tool_calls"}]


def _with_end(content: Any) -> Any:
    """A message's content, text or parts, with the mark behind its text. Raises `InvalidRequestError`."""
    match content:
        case str(text) if text:
            return text + _END
        case [*before, {"type": "text", "text": str(text)}]:
            return [*before, {"type": "text", "text": text + _END}]
        case [*_, _]:
            raise InvalidRequestError(
                "messages", "the last message ends with an image: no text goes on there"
            )
    raise InvalidRequestError("messages", "the last message has no content to go on with")


def _until_end(text: str) -> str:
    """The text up to the last mark, without the white space that the template strips from messages."""
    before, mark, after = text.rpartition(_END.rstrip())
    if not mark:
        what = "the chat template leaves out the end of the last message, which so cannot go on"
        raise InvalidRequestError("continue_final_message", what)
    if after.startswith("\t"):
        return before if after.startswith("\t ") else before.rstrip(" ")
    return before.rstrip()


def _line(error: Exception) -> str:
    """What went wrong, in one line that is no longer than one."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _tojson
    # jinja2's own makes a text that escapes for HTML what is added to it, as Functionary's template does.
    environment.filters["safe"] = str
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
