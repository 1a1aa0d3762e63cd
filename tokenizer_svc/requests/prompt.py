"""Checks a request and turns its prompt into tokens."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from proto.images_pb2 import PromptImage
from proto.tokenizer_pb2 import ChatMessage, Conversation, EmbedRequest, TextRequest
from tokenizer_svc.errors import InvalidRequestError, TooLongError
from tokenizer_svc.model.images import ImageSizes, check_images, images_in, in_parts, with_images
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.context import ContextLength, unknown
from tokenizer_svc.requests.infill import laid_out
from tokenizer_svc.templates.habits import THOUGHT_FIELDS
from tokenizer_svc.templates.template import USUAL, Rendering

Render = Callable[
    [Sequence[Mapping[str, Any]], Mapping[str, Any], Sequence[Any], str, Rendering], Awaitable[str]
]
"""Renders a chat template. Takes messages, further variables of the template, tools, the tenant on whose
behalf, and how to render; raises `InvalidRequestError`."""

Request = TextRequest | EmbedRequest

Kind = TypeVar("Kind", dict[str, Any], list[Any])

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 256
"""Characters of one stop string."""
MAX_STOP_CHARACTERS = 4096
"""Characters of all stop strings together: an automaton is made of them."""
MAX_STOP_TOKENS = 256
MAX_PROMPT_LENGTH = 2_000_000
"""Characters of a prompt: a bound on the work before its tokens can be counted."""
MAX_PREDICTION = 200_000
"""Characters of a prediction that count."""
MAX_PROMPT_TOKENS = 500_000
"""Half of what a message to the scheduler can carry (4 MiB); the model's own bound is the scheduler's."""
MAX_MESSAGES = 4096
MAX_TEMPLATE_LENGTH = 65_536
"""Characters of a client's chat template."""
TRUNCATE = "truncate_prompt_tokens"
SHORT = 8_000
"""Characters that are encoded at once (about 2 ms). A longer text is encoded in a thread: streams go on."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a request."""

    tokens: list[int]
    images: Sequence[PromptImage] = ()


async def prompt_of(
    model: TextModel,
    request: TextRequest,
    context: ContextLength,
    render: Render | None,
    sizes: ImageSizes,
) -> Prompt:
    """The request's prompt, with its images. `context`, `render`: as for `prompt_tokens`.

    Raises `InvalidRequestError`, and with images `ImageGone` and `BusAway`.
    """
    images = images_in(request.chat)
    if images:
        _check_use(request)
    tokens = await prompt_tokens(model, request, context, render)
    if not images:
        return Prompt(tokens)
    assert model.images is not None  # or `prompt_tokens` has refused them
    prompt = Prompt(*await with_images(tokens, images, model.images, sizes, request.tenant))
    _check_count("messages", len(prompt.tokens))
    return prompt


def _check_use(request: TextRequest) -> None:
    """Raise `InvalidRequestError` for what goes with a prompt of text alone."""
    if request.truncate_prompt_tokens:
        raise InvalidRequestError(TRUNCATE, "a prompt with images cannot be cut")
    if request.rolling_context:
        raise InvalidRequestError("rolling_context", "a prompt with images cannot be forgotten in part")


async def prompt_tokens(
    model: TextModel,
    request: TextRequest,
    context: ContextLength = unknown,
    render: Render | None = None,
) -> list[int]:
    """The tokens of the request's prompt, at least one. Raises `InvalidRequestError`.

    Each image is one token, a placeholder. A long text is refused before it is encoded if it cannot fit into
    the `context`. `render`: renders conversations; None if the model has no chat template.
    """
    last = request.truncate_prompt_tokens
    if last:  # a text of any length fits
        longest, context = await context(), unknown
        last = min(last, longest - 1) if longest > 1 else last
    special = request.add_special_tokens if request.HasField("add_special_tokens") else None
    match request.WhichOneof("prompt"):
        case "tokens":
            return _given(request.tokens.ids, model.vocab_size)[-last:]
        case "text":
            tokens = await _encode_text(model, request, context, special is not False)
            param = "prompt"
        case "chat":
            tokens = await _encode_chat(model, request, context, render, special is True)
            param = "messages"
        case "infill":
            tokens = await _encode_infill(model, request, context, special is not False)
            param = "prompt"
        case _:
            raise InvalidRequestError("prompt", "there is no prompt")
    _check_count(param, len(tokens))
    return tokens[-last:]


async def predicted_tokens(model: TextModel, request: TextRequest) -> list[int]:
    """The tokens of what the answer is expected to be like: of its beginning, if that is too long. Those that
    the model has no row for are left out."""
    text = request.prediction[:MAX_PREDICTION]
    if len(text) <= SHORT:
        found = model.encode(text, special=False) if text else []
    else:
        found = await model.aside.run(request.tenant, len(text), model.encode, text, False)
    return found if model.has_rows(found) else [token for token in found if token < model.vocab_size]


async def input_tokens(
    model: TextModel,
    request: EmbedRequest,
    context: ContextLength = unknown,
    render: Render | None = None,
) -> tuple[list[int], int]:
    """The tokens of a text to be embedded or classified, at least one, and where a second text begins.

    That is an index as of `TextModel.encode_pair`. `context`, `render`: as for `prompt_tokens`. Raises
    `InvalidRequestError`.
    """
    param, second, most = "prompt", 0, request.truncate_prompt_tokens
    if most < 0:
        most = await context()
    if most:  # a text of any length fits
        context = unknown
    match request.WhichOneof("input"):
        case "tokens":
            return _given(request.tokens.ids, model.vocab_size)[: most or None], 0
        case "text" if most:
            tokens, second = await _encode_start(model, request, [request.text], most)
        case "pair" if most and model.pair_arguments is None:
            texts = [request.pair.query, request.pair.document]
            tokens, second = await _encode_start(model, request, texts, most)
        case "pair" | "chat" if most:
            raise InvalidRequestError(
                TRUNCATE, "what this model's chat template makes of texts cannot be cut"
            )
        case "text":
            tokens = await _encode_text(model, request, context, special=True)
        case "pair":
            tokens, second = await _encode_pair(model, request, context, render)
        case "chat" if images_in(request.chat):
            raise InvalidRequestError("messages", "texts are embedded and classified, and no images")
        case "chat":
            tokens, param = await _encode_chat(model, request, context, render, special=False), "messages"
        case _:
            raise InvalidRequestError("prompt", "there is no text")
    _check_count(param, len(tokens))
    return tokens, second


def check(model: TextModel, request: TextRequest) -> None:
    """Check everything but the prompt. Raises `InvalidRequestError`."""
    if request.n < 1:
        raise InvalidRequestError("n", "n must be at least 1")
    if request.HasField("max_tokens") and request.max_tokens < 1:
        raise InvalidRequestError("max_tokens", "max_tokens must be at least 1")
    if len(request.stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError("stop", f"at most {MAX_STOP_STRINGS} stop strings, not {len(request.stop)}")
    if not all(0 < len(string) <= MAX_STOP_LENGTH for string in request.stop):
        raise InvalidRequestError("stop", f"a stop string has 1 to {MAX_STOP_LENGTH} characters")
    if sum(map(len, request.stop)) > MAX_STOP_CHARACTERS:
        raise InvalidRequestError("stop", f"all stop strings have at most {MAX_STOP_CHARACTERS} characters")
    if request.no_text and request.stop:
        raise InvalidRequestError("stop", "stop strings are found in a text, and none is wanted")
    if len(request.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidRequestError("stop_token_ids", f"at most {MAX_STOP_TOKENS} stop tokens")
    _check_ids("stop_token_ids", request.stop_token_ids, model.vocab_size)
    indices = [sequence.index for sequence in request.resumed]
    if len(set(indices)) < len(indices) or any(index >= request.n for index in indices):
        raise InvalidRequestError("resumed", f"sequences {indices} are not distinct ones of {request.n}")
    for sequence in request.resumed:
        _check_ids("resumed", sequence.token_ids, model.vocab_size)


def _given(ids: Sequence[int], vocab_size: int) -> list[int]:
    _check_count("prompt", len(ids))
    _check_ids("prompt", ids, vocab_size)
    return list(ids)


async def _encode_text(
    model: TextModel, request: Request, context: ContextLength, special: bool
) -> list[int]:
    _check_length("prompt", len(request.text))
    return await _encoded(model, request, "prompt", request.text, context, special)


async def _encoded(
    model: TextModel, request: Request, param: str, text: str, context: ContextLength, special: bool
) -> list[int]:
    if len(text) <= SHORT:
        return model.encode(text, special)
    model.check_fits(param, len(text), await context())
    return await model.aside.run(request.tenant, len(text), model.encode, text, special)


async def _encode_infill(
    model: TextModel, request: TextRequest, context: ContextLength, special: bool
) -> list[int]:
    layout, gap = model.infilling, request.infill
    if layout is None:
        raise InvalidRequestError("suffix", "this model's vocabulary has no tokens to fill in the middle")
    if request.truncate_prompt_tokens:
        raise InvalidRequestError(TRUNCATE, "a text with a gap cannot be cut")
    length = len(gap.before) + len(gap.after) + sum(len(one.name) + len(one.text) for one in gap.files)
    _check_length("prompt", length)
    if length <= SHORT:
        return laid_out(model, layout, gap, special)
    model.check_fits("prompt", length, await context())
    return await model.aside.run(request.tenant, length, laid_out, model, layout, gap, special)


async def _encode_start(
    model: TextModel, request: EmbedRequest, texts: Sequence[str], most: int
) -> tuple[list[int], int]:
    """See `TextModel.encode_start`."""
    length = sum(map(len, texts))
    _check_length("prompt", length)
    if length <= SHORT:
        found = model.encode_start(texts, most)
    else:
        found = await model.aside.run(request.tenant, length, model.encode_start, texts, most)
    if length and not found[0]:
        raise InvalidRequestError(TRUNCATE, f"besides special tokens there is no room for a text in {most}")
    return found


async def _encode_pair(
    model: TextModel, request: EmbedRequest, context: ContextLength, render: Render | None
) -> tuple[list[int], int]:
    query, document = request.pair.query, request.pair.document
    length = len(query) + len(document)
    _check_length("prompt", length)
    if model.pair_arguments is not None and render is not None:
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        arguments = dict(model.pair_arguments)
        rendering = Rendering(add_generation_prompt=arguments.pop("add_generation_prompt", False) is True)
        text = await render(messages, arguments, [], request.tenant, rendering)
        return await _encoded(model, request, "prompt", text, context, special=False), 0
    if length <= SHORT:
        return model.encode_pair(query, document)
    model.check_fits("prompt", length, await context())
    return await model.aside.run(request.tenant, length, model.encode_pair, query, document)


async def _encode_chat(
    model: TextModel,
    request: Request,
    context: ContextLength,
    render: Render | None,
    special: bool,
) -> list[int]:
    chat = request.chat
    check_images(chat, model.images)
    if render is None:
        raise InvalidRequestError("messages", "this model has no chat template: use plain completions")
    if not 0 < len(chat.messages) <= MAX_MESSAGES:
        raise InvalidRequestError("messages", f"a conversation has 1 to {MAX_MESSAGES} messages")
    _check_length("messages", sum(map(_length, chat.messages)))
    messages = [_message(message) for message in chat.messages]
    arguments = _json("chat_template_kwargs", chat.template_arguments, dict)
    tools = _json("tools", chat.tools, list)
    text = await render(messages, arguments, tools, request.tenant, _rendering(chat))
    # Arguments of a call may spell half a character (a lone surrogate): U+FFFD stands for it.
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if model.images is not None and images_in(chat):
        text = model.images.apart(text)
    return await _encoded(model, request, "messages", text, context, special)


def _rendering(chat: Conversation) -> Rendering:
    if not (chat.no_generation_prompt or chat.continue_final_message or chat.documents or chat.template):
        return USUAL
    if len(chat.template) > MAX_TEMPLATE_LENGTH:
        raise InvalidRequestError("chat_template", f"at most {MAX_TEMPLATE_LENGTH} characters")
    return Rendering(
        add_generation_prompt=not (chat.no_generation_prompt or chat.continue_final_message),
        continue_final_message=chat.continue_final_message,
        documents=_json("documents", chat.documents, list),
        template=chat.template,
    )


def _length(message: ChatMessage) -> int:
    """Characters of a message."""
    calls = sum(len(call.id) + len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.role) + len(message.content) + len(message.name) + len(message.reasoning) + calls


def _message(message: ChatMessage) -> dict[str, Any]:
    """A message as `ChatTemplate.render` takes it: without the fields that it does not have."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.images:
        fields["content"] = in_parts(message)
    elif message.no_content:
        fields["content"] = None
    if message.name:
        fields["name"] = message.name
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        fields |= dict.fromkeys(THOUGHT_FIELDS, message.reasoning)
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return fields


def _json(param: str, text: str, kind: type[Kind]) -> Kind:
    """What the JSON text spells; an empty text, nothing. Raises `InvalidRequestError`."""
    _check_length(param, len(text))
    try:
        value = json.loads(text) if text else kind()
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(param, f"this is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise InvalidRequestError(param, f"this is not a JSON {'object' if kind is dict else 'array'}")
    return value


def _check_length(param: str, length: int) -> None:
    if length > MAX_PROMPT_LENGTH:
        raise TooLongError(param, _too_long(f"{MAX_PROMPT_LENGTH} characters"))


def _check_count(param: str, tokens: int) -> None:
    if tokens == 0:
        raise InvalidRequestError(param, "the prompt is empty: it has no tokens")
    if tokens > MAX_PROMPT_TOKENS:
        raise TooLongError(param, _too_long(f"{MAX_PROMPT_TOKENS} tokens"))


def _too_long(most: str) -> str:
    """In words by which agents see that they should shorten the conversation."""
    return f"prompt is too long: more than {most}, and your input exceeds the context window of this model"


def _check_ids(param: str, ids: Sequence[int], vocab_size: int) -> None:
    if ids and max(ids) >= vocab_size:
        raise InvalidRequestError(
            param, f"token id {max(ids)} is not below {vocab_size}, the model's vocabulary"
        )
