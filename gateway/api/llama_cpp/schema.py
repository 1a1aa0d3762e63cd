"""What clients may ask of /completion, in the shape of llama.cpp's server."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.api.common.body import validated
from gateway.api.common.fields import Biases, declared
from gateway.api.infill.schema import PREDICTED, ResponseFields
from gateway.api.openai.completions_schema import CompletionBody
from gateway.errors import BadRequest
from proto.sampling import MAX_BIAS, MAX_BIASES

_PAIR = {"type": "array", "minItems": 2, "maxItems": 2}
_PAIRS = {"anyOf": [{"type": "object"}, {"type": "array", "items": _PAIR, "maxItems": MAX_BIASES}]}


def _of_pairs(value: object) -> object:
    """Biases by token id, of pairs of both, in which `false` forbids the token."""
    if not isinstance(value, list):
        return value
    if len(value) > MAX_BIASES:
        raise PydanticCustomError("too_long", f"At most {MAX_BIASES} tokens can have a bias")
    found: dict[str, Any] = {}
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int):
            raise PydanticCustomError("bias", "Each is a pair of a token id and a number or false")
        found[str(pair[0])] = -MAX_BIAS if pair[1] is False else pair[1]
    return found


class LlamaCompletionBody(CompletionBody):
    """POST /completion: the parameters of /v1/completions, some under llama.cpp's names."""

    ignored = CompletionBody.ignored | {"cache_prompt", "samplers", "id_slot", "t_max_predict_ms"}

    n_predict: int = PREDICTED
    repeat_penalty: float = declared("repetition_penalty")
    logit_bias: Annotated[Biases, BeforeValidator(_of_pairs), WithJsonSchema(_PAIRS)] = Field(
        default_factory=dict,
        description="Pairs of token ids and biases, or an object with these; false: never.",
    )
    response_fields: ResponseFields

    def completion(self) -> CompletionBody:
        """The same request of the completions API. Raises `BadRequest`."""
        if self.prompts != 1 or self.n != 1:
            name = "prompt" if self.prompts != 1 else "n"
            raise BadRequest("One prompt has one answer here.", param=name, code="invalid_value")
        names = self.model_fields_set & CompletionBody.model_fields.keys() - {"max_tokens"}
        fields = {name: getattr(self, name) for name in names}
        if "repeat_penalty" in self.model_fields_set:
            fields["repetition_penalty"] = self.repeat_penalty
        if self.logit_bias:
            fields["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        most = self.n_predict
        if "n_predict" not in self.model_fields_set and "max_tokens" in self.model_fields_set:
            most = -1 if self.max_tokens is None else self.max_tokens
        fields["max_tokens"] = -1 if most < 0 else most or 1
        return validated(fields, CompletionBody)
