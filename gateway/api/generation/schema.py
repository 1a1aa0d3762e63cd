"""What the two generating endpoints of the OpenAI API and its usual extensions have in common."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from gateway.api.common.fields import (
    MAX_INT32,
    MAX_STOP_TOKENS,
    AllowedTokens,
    BadWords,
    Biases,
    Breakers,
    Kept,
    Seed,
    Stops,
    TokenId,
    alternatives,
    declared,
)
from gateway.api.common.request_schema import BodyPart, RequestBody
from gateway.api.generation.shape import ShapedBody
from gateway.errors import BadRequest
from proto.sampling import MAX_SEQUENCES, STAGED
from proto.sampling_pb2 import Dry


class StreamOptions(BodyPart):
    """What a stream contains besides the text."""

    place: ClassVar[str] = "stream_options."

    include_usage: bool = False
    continuous_usage_stats: bool = Field(False, description="Token counts so far in every event.")
    include_obfuscation: bool = False


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
    max_tokens: int | None = declared("max_tokens", description="-1: up to the end of the context.")
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
    seed: Seed = None
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
    truncate_prompt_tokens: Kept | None = Field(
        None, description="Tokens to keep of the prompt, from its end. -1: as many as the model takes."
    )
    add_special_tokens: bool | None = Field(
        None, description="Add the tokenizer's own special tokens to the text: by default, not in a chat."
    )
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = Field(
        False, description="Spell the tokens of `logprobs` by their ids, as in `token_id:50256`."
    )
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

    @field_validator("max_tokens", "max_completion_tokens", mode="before", check_fields=False)
    @classmethod
    def _no_limit(cls, value: object) -> object:
        """None for llama.cpp's -1."""
        return None if value == -1 else value

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
    def predicted(self) -> str:
        """What the answer is expected to be like; empty: nothing is expected."""
        return ""

    @property
    def has_images(self) -> bool:
        """Whether there are images in its messages."""
        return False

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
