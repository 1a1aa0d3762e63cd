"""What the tokenizer adds to a request's rules: the tokens of bad words, and those that end an answer."""

from collections.abc import Collection

from proto.sampling import problem_in
from proto.sampling_pb2 import TokenSequence
from proto.tokenizer_pb2 import TextRequest
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.breakers import Breakers

MAX_BAD_WORDS = 128
MAX_BREAKERS = 32
MAX_BAD_WORD_LENGTH = 256
"""Characters of one bad word."""
SHORT = 4_000
"""Characters of bad words that are encoded at once. Longer ones are encoded in a thread."""


def stop_tokens(model: TextModel, request: TextRequest) -> list[int]:
    """Tokens each of which ends an answer, ascending."""
    ends: Collection[int] = () if request.ignore_eos else model.end_tokens
    # The text may hide special tokens; one that is named as a stop string stops the answer all the same.
    named = [model.special_tokens[text] for text in request.stop if text in model.special_tokens]
    if model.infilling is not None and request.HasField("infill") and not request.ignore_eos:
        ends = {*ends, *model.infilling.ends}
    return sorted({*ends, *request.stop_token_ids, *(token for token in named if model.has_rows([token]))})


async def complete_rules(model: TextModel, request: TextRequest, breakers: Breakers) -> None:
    """Set the fields of the request's rules that are the tokenizer's. Raises `InvalidRequestError`."""
    if request.bad_words:
        words = request.bad_words
        if len(words) > MAX_BAD_WORDS or not all(0 < len(word) <= MAX_BAD_WORD_LENGTH for word in words):
            most = f"at most {MAX_BAD_WORDS} bad words, each of 1 to {MAX_BAD_WORD_LENGTH} characters"
            raise InvalidRequestError("bad_words", most)
        if sum(map(len, words)) <= SHORT:
            found = _bad_words(model, list(words))
        else:
            found = await model.aside.run(request.tenant, 0, _bad_words, model, list(words))
        request.sampling.rules.bad_words.extend(TokenSequence(tokens=tokens) for tokens in found)
    if not request.sampling.HasField("rules"):
        return
    rules = request.sampling.rules
    if rules.HasField("dry"):
        if len(request.dry_breakers) > MAX_BREAKERS:
            raise InvalidRequestError("dry_sequence_breakers", f"at most {MAX_BREAKERS} breakers")
        named = list(request.dry_breakers)
        await model.aside.run(request.tenant, 0, breakers.add_to, rules.dry, named)
    if rules.min_tokens:
        # An end token is held back even where it would not end the answer, as in vLLM.
        rules.end_tokens[:] = sorted({*model.end_tokens, *stop_tokens(model, request)})
    for name, tokens in (("logit_bias", rules.biased_tokens), ("allowed_token_ids", rules.allowed_tokens)):
        if tokens and max(tokens) >= model.vocab_size:
            raise InvalidRequestError(
                name, f"token id {max(tokens)} is not below {model.vocab_size}, the model's vocabulary"
            )
    if problem := problem_in(rules):
        raise InvalidRequestError(*problem)


def _bad_words(model: TextModel, words: list[str]) -> list[list[int]]:
    """The sequences of tokens that spell each word, at the beginning of a text and after a space. A sequence
    that the model cannot write is left out."""
    found = []
    for word in words:
        first = model.encode(word.lstrip(), special=False)
        if not first:
            raise InvalidRequestError("bad_words", f"{word!r} has no tokens")
        found.append(first)
        within = model.encode(" " + word.lstrip(), special=False)
        if within != first:
            found.append(within)
    return list(filter(model.has_rows, found))
