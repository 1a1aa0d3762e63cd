"""What clients may ask: the request bodies of the OpenAI API and the usual extensions of it.

The checks here need no model. The defaults are OpenAI's; a default of the model's own replaces them (see
`translate.py`). Ranges and defaults of sampling parameters are declared in `proto/sampling.proto`. A string
is no number. A field that nobody knows is noted and left out, or refused where the gateway's settings say so.
"""

from functools import cache
from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from gateway.api.fields import (
    MAX_INT32,
    MAX_MESSAGE_FIELDS,
    MAX_MESSAGES,
    MAX_STOP_TOKENS,
    MAX_TEMPLATE_LENGTH,
    AllowedTokens,
    Arguments,
    BadWords,
    Biases,
    Breakers,
    Content,
    Count,
    Documents,
    Inputs,
    Prompts,
    Stops,
    TokenId,
    Unsupported,
    alternatives,
    declared,
    nullable,
)
from gateway.api.ignored import Ignored
from gateway.api.shape import ShapedBody
from gateway.api.tools import MAX_CALLS, ToolCall, ToolChoice, Tools, allowed_names, call_shape, demanded
from gateway.errors import BadRequest
from proto.sampling import MAX_SEQUENCES, STAGED
from proto.sampling_pb2 import Dry
from proto.tokenizer_pb2 import CallShape, Shape


class BodyPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    place: ClassVar[str] = ""
    """What comes before the names of its fields where they are noted as ignored."""

    @model_validator(mode="before")
    @classmethod
    def _without_unknown(cls, value: object, info: ValidationInfo) -> object:
        """Without fields that nobody knows, which are noted in the context, if there is one."""
        ignored = info.context
        if not (isinstance(value, dict) and isinstance(ignored, Ignored)):
            return value
        known = cls.model_fields
        unknown = [name for name in value if name not in known]
        if not unknown:
            return value
        for name in unknown:
            if value[name] is not None:
                ignored.note(cls.place + name)
        return {name: part for name, part in value.items() if name in known}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema, with fields that nobody knows."""
        reference = handler(core)
        handler.resolve_ref_schema(reference).pop("additionalProperties", None)
        return reference


class StreamOptions(BodyPart):
    """What a stream contains besides the text."""

    place: ClassVar[str] = "stream_options."

    include_usage: bool = False
    continuous_usage_stats: bool = Field(False, description="Token counts so far in every event.")
    include_obfuscation: bool = False


class RequestBody(BodyPart):
    """Fields that all endpoints have in common."""

    # Accepted without effect: they concern the client's bookkeeping or the provider's, not the answer.
    ignored: ClassVar[frozenset[str]] = frozenset(
        (
            "metadata",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "service_tier",
            "store",
        )
    )
    # OpenAI's parameters that are not supported, each with the values that change nothing and are accepted.
    neutral: ClassVar[dict[str, tuple[object, ...]]] = {}
    # Lists whose parts are of several types.
    mixed: ClassVar[frozenset[str]] = frozenset()

    model: str = Field(min_length=1)
    cache_salt: str = Field("", max_length=256)
    user: str = Field(
        "", max_length=256, description="Who asks: shares what the tenant gets with the tenant's other users."
    )
    priority: int = Field(0, ge=-(2**31), le=MAX_INT32, description="Lower runs earlier.")
    timeout: float | None = Field(None, gt=0, le=86400, description="Seconds that the answer may take.")

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema as `gateway.api.body` reads a body: see its `_supported`."""
        reference = super().__get_pydantic_json_schema__(core, handler)
        schema = handler.resolve_ref_schema(reference)
        required = schema.get("required", ())
        schema["properties"] = {
            name: field if name in required else nullable(field)
            for name, field in schema["properties"].items()
        }
        for name in sorted(cls.ignored):
            schema["properties"][name] = {"description": "Accepted without effect."}
        for name, values in cls.neutral.items():
            schema["properties"][name] = {"enum": [*values, None], "description": "Not supported."}
        return reference

    @classmethod
    @cache
    def whole(cls) -> frozenset[str]:
        """Names of the fields that are whole numbers."""
        fields = cls.model_fields.items()
        return frozenset(
            name for name, field in fields if int in (field.annotation, *get_args(field.annotation))
        )


class EmbeddingBody(RequestBody):
    """POST /v1/embeddings, and /pooling."""

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = Field(None, description="Numbers to keep from the start of each embedding.")
    pooling: Literal["mean", "last"] | None = Field(
        None, description="How the tokens become one vector; the default is the model's."
    )


class GenerationBody(ShapedBody, RequestBody):
    """Fields that the two generating endpoints have in common."""

    # There are no spaces between special tokens, whatever it says.
    ignored: ClassVar[frozenset[str]] = RequestBody.ignored | {"spaces_between_special_tokens"}
    neutral: ClassVar[dict[str, tuple[object, ...]]] = {
        # Who asks for a form of the answer relies on it.
        "structural_tag": (),
        "logits_processors": ([],),
    }

    n: int = Field(1, ge=1, le=MAX_SEQUENCES)
    max_tokens: int | None = declared("max_tokens")
    temperature: float = declared("temperature")
    top_p: float = declared("top_p")
    top_k: int = declared("top_k", description="0 or -1: off.")
    min_p: float = declared("min_p")
    top_n_sigma: float = declared("top_n_sigma", description="0 or below: off.")
    typical_p: float = declared("typical_p")
    xtc_probability: float = declared("xtc_probability")
    xtc_threshold: float = declared("xtc_threshold")
    presence_penalty: float = declared("presence_penalty")
    frequency_penalty: float = declared("frequency_penalty")
    repetition_penalty: float = declared("repetition_penalty")
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1, description="Taken modulo 2^64.")
    stop: Stops = Field(default_factory=list)
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=MAX_STOP_TOKENS)
    include_stop_str_in_output: bool = Field(
        False, description="The text contains the stop string or the stop token that ends it."
    )
    ignore_eos: bool = False
    min_tokens: int = declared("min_tokens", description="Tokens before which nothing ends an answer.")
    logit_bias: Biases = Field(
        default_factory=dict, description="What is added to the logits of tokens, by token id."
    )
    allowed_token_ids: AllowedTokens | None = Field(None, description="The only tokens that can be chosen.")
    dry_multiplier: float = declared("dry_multiplier", description="Penalty on going on with a repetition.")
    dry_base: float = declared("dry_base")
    dry_allowed_length: int = declared("dry_allowed_length", description="Tokens that may be repeated.")
    dry_penalty_last_n: int = declared("dry_penalty_last_n", description="Newest tokens that count; -1: all.")
    dry_sequence_breakers: Breakers = Field(
        default_factory=lambda: ["\n", ":", '"', "*"], description="Texts beyond which no repetition reaches."
    )
    bad_words: BadWords = Field(default_factory=list, description="Words that no answer contains.")
    rolling_context: bool = Field(
        False,
        description="Go on past the model's context; the middle of the text is then forgotten.",
    )
    skip_special_tokens: bool = True
    detokenize: bool = Field(True, description="With `false` the text is empty: there are tokens alone.")
    truncate_prompt_tokens: Count | None = Field(
        None, description="Tokens to keep of the prompt, from its end."
    )
    add_special_tokens: bool | None = Field(
        None, description="Add the tokenizer's own special tokens to the text: by default, not in a chat."
    )
    return_token_ids: bool = False
    use_beam_search: bool = Field(False, description="Find the `n` most likely answers instead of sampling.")
    beam_width: int | None = declared("beam_width", description="Number of beams; `n` by default.")
    length_penalty: float = declared("length_penalty", description="Above 0 favours longer answers.")
    early_stopping: bool | Literal["never"] = False
    prompt_logprobs: int | None = declared(
        "prompt_logprobs",
        description="Log probabilities of the prompt; this many alternatives to each token.",
    )
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            message = "'stream_options' is only allowed with 'stream'."
            raise BadRequest(message, param="stream_options", code="invalid_value")
        return self

    @model_validator(mode="after")
    def _stop_strings_need_a_text(self) -> "GenerationBody":
        if self.stop and not self.detokenize:
            raise BadRequest("'stop' needs a text: see 'detokenize'.", param="stop", code="invalid_value")
        return self

    @model_validator(mode="after")
    def _beam_search_does_not_sample(self) -> "GenerationBody":
        given, beams = self.model_fields_set, ("beam_width", "length_penalty", "early_stopping")
        if not self.use_beam_search:
            fields = type(self).model_fields
            for name in [each for each in beams if getattr(self, each) != fields[each].default]:
                raise BadRequest(f"'{name}' needs 'use_beam_search'.", param=name, code="invalid_value")
            return self
        if self.width < self.n:
            raise BadRequest("'beam_width' must be at least 'n'.", param="beam_width", code="invalid_value")
        if self.wanted_logprobs is not None:
            message = "Beam search does not report log probabilities."
            raise BadRequest(message, param="logprobs", code="invalid_value")
        if "temperature" in given and self.temperature:
            message = "Beam search does not sample: leave out 'temperature' or set it to 0."
            raise BadRequest(message, param="temperature", code="invalid_value")
        shaping = [each.name for each in STAGED if self.staged[each.name] != each.default]
        ruling = ("min_tokens", "logit_bias", "allowed_token_ids", "bad_words", "dry_multiplier")
        shaping += [name for name in ruling if getattr(self, name)]
        for name in ["rolling_context"] * self.rolling_context + shaping:
            if name != "temperature":
                message = f"'{name}' has no effect on beam search: leave it out."
                raise BadRequest(message, param=name, code="invalid_value")
        return self

    @model_validator(mode="after")
    def _prompt_logprobs_are_not_streamed(self) -> "GenerationBody":
        if self.prompt_logprobs is not None and self.stream:
            message = "'prompt_logprobs' is not available with 'stream'."
            raise BadRequest(message, param="prompt_logprobs", code="invalid_value")
        return self

    @property
    def staged(self) -> dict[str, float]:
        """Penalties, temperature and filters by name, in the ranges that services accept from each other."""
        return {each.name: each.range.nearest(getattr(self, each.name)) for each in STAGED}

    @property
    def dry(self) -> Dry | None:
        """The penalty on repetitions; None if nothing is subtracted."""
        if not (self.dry_multiplier and self.dry_penalty_last_n):
            return None
        names = ("dry_multiplier", "dry_base", "dry_allowed_length")
        last_n = MAX_INT32 if self.dry_penalty_last_n == -1 else self.dry_penalty_last_n
        return Dry(**{name: getattr(self, name) for name in names}, dry_penalty_last_n=last_n)

    @property
    def width(self) -> int:
        """Number of beams of a beam search."""
        return self.n if self.beam_width is None else self.beam_width

    @model_validator(mode="after")
    def _endless_answers_are_streamed(self) -> "GenerationBody":
        if self.rolling_context and self.limit is None and not self.stream:
            message = "'rolling_context' without 'max_tokens' has no end and needs 'stream'."
            raise BadRequest(message, param="max_tokens", code="invalid_value")
        return self

    @model_validator(mode="after")
    def _min_tokens_within_max_tokens(self) -> "GenerationBody":
        given = self.model_fields_set & {"max_tokens", "max_completion_tokens"}
        if given and self.limit is not None and self.min_tokens > self.limit:
            message = "'min_tokens' must be at most 'max_tokens'."
            raise BadRequest(message, param="min_tokens", code="invalid_value")
        return self

    @property
    def limit(self) -> int | None:
        """Tokens to generate at most; None: as many as the context has room for."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Every event of the stream has the token counts so far."""
        return (
            self.include_usage
            and self.stream_options is not None
            and self.stream_options.continuous_usage_stats
        )

    @property
    def sequences(self) -> int:
        """Sequences to generate for each prompt. The client gets `n` of them."""
        return self.n

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return 1

    @property
    def all_sequences(self) -> int:
        """Sequences that are computed for all prompts together, beams among them."""
        return self.prompts * (self.width if self.use_beam_search else self.sequences)

    @property
    def sequences_name(self) -> str:
        """The parameter that gives the number of sequences for each prompt."""
        return "n" if self.beam_width is None else "beam_width"

    @property
    def wanted_logprobs(self) -> int | None:
        """Alternatives to report with each token; None: no log probabilities."""
        raise NotImplementedError

    @property
    def scored_alternatives(self) -> int | None:
        """Alternatives to ask for with each token of the prompt; None: no log probabilities of it."""
        return alternatives(self.prompt_logprobs)

    @property
    def shows_prompt(self) -> bool:
        """Each answer begins with its prompt."""
        return False


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    neutral: ClassVar[dict[str, tuple[object, ...]]] = {
        **GenerationBody.neutral,
        "suffix": ("",),
    }

    prompt: Prompts
    max_tokens: int | None = declared("max_tokens", default=16, ge=0, description="0: with `echo` alone.")
    echo: bool = Field(False, description="Give back the prompt before each answer, with `logprobs` its own.")
    best_of: int | None = Field(
        None,
        ge=1,
        le=MAX_SEQUENCES,
        description="Answers to sample; the `n` with the highest log probability per token are returned.",
    )
    logprobs: int | None = declared("logprobs")

    @model_validator(mode="after")
    def _bounded(self) -> "CompletionBody":
        if self.use_beam_search and self.sequences != self.n:
            message = "'best_of' does not go with 'use_beam_search': set 'beam_width'."
            raise BadRequest(message, param="best_of", code="invalid_value")
        if self.sequences < self.n:
            message = "'best_of' must be at least 'n'."
            raise BadRequest(message, param="best_of", code="invalid_value")
        if self.sequences > self.n and self.stream:
            message = "'best_of' above 'n' cannot be streamed: the best answers are known at the end."
            raise BadRequest(message, param="best_of", code="invalid_value")
        return self

    @model_validator(mode="after")
    def _something_is_asked_for(self) -> "CompletionBody":
        if self.max_tokens == 0 and not self.echo:
            message = "'max_tokens' must be at least 1 without 'echo'."
            raise BadRequest(message, param="max_tokens", code="invalid_value")
        return self

    @property
    def prompts(self) -> int:
        return len(self.prompt)

    @property
    def sequences_name(self) -> str:
        return super().sequences_name if self.best_of is None else "best_of"

    @property
    def limit(self) -> int | None:
        # With a rolling context the default is no limit, in place of 16 tokens.
        if self.rolling_context and "max_tokens" not in self.model_fields_set:
            return None
        return 1 if self.echoes_alone else self.max_tokens

    @property
    def echoes_tokens(self) -> bool:
        """`echo` gives back the text of the prompt's tokens: it was given as these, or is cut."""
        return self.echo and not (isinstance(self.prompt[0], str) and self.truncate_prompt_tokens is None)

    @property
    def echoes_alone(self) -> bool:
        """Nothing but the prompt is wanted. One token is generated, for that costs no step, and left out."""
        return self.max_tokens == 0

    @property
    def sequences(self) -> int:
        return self.n if self.best_of is None else self.best_of

    @property
    def wanted_logprobs(self) -> int | None:
        return alternatives(self.logprobs)

    @property
    def scored_alternatives(self) -> int | None:
        wanted, asked = self.wanted_logprobs, super().scored_alternatives
        return asked if not self.echo or wanted is None else max(wanted, asked or 0)

    @property
    def shows_prompt(self) -> bool:
        return self.echo


class Message(BodyPart):
    """One message of a conversation."""

    place: ClassVar[str] = "messages."

    role: str = Field(min_length=1, max_length=64)
    content: Content = Field(None, description="What an assistant or a tool says may have none.")
    name: str = Field("", max_length=256, description="Name of the speaker.")
    tool_calls: list[ToolCall] = Field(
        default_factory=list, max_length=MAX_CALLS, description="Functions that the assistant has called."
    )
    tool_call_id: str = Field("", max_length=256, description="Id of the call whose result this is.")
    reasoning_content: str = Field("", description="What the assistant thought before.")
    reasoning: str = Field("", description="Another name of `reasoning_content`.")
    audio: Unsupported = None
    function_call: Unsupported = None

    @model_validator(mode="before")
    @classmethod
    def _without_empty_extras(cls, value: object, info: ValidationInfo) -> object:
        """Without null and empty fields, and without notes of OpenAI's, which client libraries send back."""
        if not isinstance(value, dict):
            return value
        if info.context is None and len(value) > MAX_MESSAGE_FIELDS:
            raise PydanticCustomError("too_long", "A message has too many fields")
        fields = {
            key: part
            for key, part in value.items()
            if key == "role" or (part not in (None, []) and key not in _NOTES)
        }
        if value.get("role") not in ("assistant", "tool") or value.get("content") is not None:
            fields["content"] = value.get("content", ...)
        return fields


_NOTES = frozenset(("refusal", "annotations"))
"""What OpenAI's answers say of a message besides its content."""


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    neutral: ClassVar[dict[str, tuple[object, ...]]] = {
        **GenerationBody.neutral,
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "web_search_options": (),
    }
    ignored: ClassVar[frozenset[str]] = GenerationBody.ignored | {"moderation", "prediction", "verbosity"}

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    chat_template_kwargs: Arguments = Field(
        default_factory=dict, description="Variables of the model's own chat template."
    )
    tools: Tools = Field(default_factory=list, description="Functions that the model may call.")
    tool_choice: ToolChoice = Field(
        "auto",
        description="`none` hides the functions from the model. `required` or a function's name demands one.",
    )
    parallel_tool_calls: bool = Field(True, description="With `false` an answer has one call at most.")
    reasoning_effort: str = Field(
        "",
        max_length=64,
        description="For templates that know it; with `none` a template that can leaves out the thought.",
    )
    add_generation_prompt: bool = Field(
        True, description="End the prompt with the beginning of an answer, as the chat template has it."
    )
    continue_final_message: bool = Field(
        False, description="Go on with the last message. Nothing follows it in the prompt."
    )
    documents: Documents = Field(
        default_factory=list, description="Texts to draw on, for chat templates that know of such."
    )
    chat_template: str = Field(
        "", max_length=MAX_TEMPLATE_LENGTH, description="In place of the model's own, where that is allowed."
    )
    thinking_token_budget: int | None = Field(
        None, ge=0, le=MAX_INT32, description="Tokens of the thought at most; then the answer begins."
    )
    max_completion_tokens: int | None = declared("max_tokens")
    logprobs: bool = False
    top_logprobs: int | None = declared("logprobs")

    @model_validator(mode="after")
    def _consistent(self) -> "ChatBody":
        begins = self.add_generation_prompt and "add_generation_prompt" in self.model_fields_set
        if self.continue_final_message and begins:
            message = "'continue_final_message' does not go with 'add_generation_prompt'."
            raise BadRequest(message, param="continue_final_message", code="invalid_value")
        if self.top_logprobs is not None and not self.logprobs:
            message = "'top_logprobs' is only allowed with 'logprobs'."
            raise BadRequest(message, param="top_logprobs", code="invalid_value")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            message = "'max_tokens' and 'max_completion_tokens' differ; use the latter."
            raise BadRequest(message, param="max_tokens", code="invalid_value")
        return self

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def shape(self) -> Shape | None:
        """What the client asks for, of the text or of calls. Raises `BadRequest`."""
        shape = super().shape
        if shape is not None and shape.param == "response_format" and self._wishes_calls:
            # As with OpenAI: the model calls functions, or says something in this format.
            shape.or_calls.CopyFrom(CallShape(single=not self.parallel_tool_calls))
            return shape
        calls = call_shape(self.offered, self.tool_choice, self.parallel_tool_calls)
        if calls is None or (shape is not None and not calls.required):
            return shape
        # `response_format` is about an answer's text, and one that is a call has none: both can be asked for.
        if shape is not None and shape.param != "response_format":
            message = f"'tool_choice' and '{shape.param}': only one can be followed."
            raise BadRequest(message, param="tool_choice", code="invalid_value")
        return Shape(calls=calls, param="tools")

    @property
    def _wishes_calls(self) -> bool:
        return bool(self.offered) and not demanded(self.tool_choice)

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The functions that the model may call in this answer."""
        if self.tool_choice == "none":
            return []
        names = allowed_names(self.tool_choice)
        return [tool for tool in self.tools if names is None or tool["function"]["name"] in names]

    @property
    def wanted_logprobs(self) -> int | None:
        return alternatives(self.top_logprobs or 0) if self.logprobs else None
