"""What clients may ask of /v1/completions."""

from pydantic import Field, model_validator

from gateway.api.common.fields import Prompts, alternatives, declared
from gateway.api.generation.schema import GenerationBody
from gateway.errors import BadRequest
from proto.sampling import MAX_SEQUENCES


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    suffix: str = Field(
        "", description="What stands after the gap that the answer fills, where the model can; empty: no gap."
    )
    prompt: Prompts = Field(description="Empty with a `suffix` alone.")
    max_tokens: int | None = declared(
        "max_tokens",
        default=16,
        ge=0,
        description="0: with `echo` alone. -1: up to the end of the context.",
    )
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
    def _a_gap_is_in_a_text(self) -> "CompletionBody":
        if self.suffix and not isinstance(self.prompt[0], str):
            message = "'suffix' needs a 'prompt' that is text."
            raise BadRequest(message, param="suffix", code="invalid_value")
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
