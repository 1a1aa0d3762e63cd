"""What a model directory defines for text: vocabulary, chat template, end tokens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import tokenizers

from ops.model_directory.classifier import Classifier, classifier_of
from ops.model_directory.encoder import encoder_family
from ops.model_directory.end_tokens import end_tokens_in
from ops.model_directory.files import FileError
from ops.model_directory.special_tokens import is_special
from ops.model_directory.tokenizer_content import tokenizer_content
from ops.runtime.watchdog import end_at_once
from tokenizer_svc.aside import Aside
from tokenizer_svc.errors import ModelDirectoryError, PanicError, TooLongError
from tokenizer_svc.model.classification import SETTINGS, pair_arguments
from tokenizer_svc.model.defaults import read_defaults
from tokenizer_svc.model.files import chat_templates, named_tokens, read_config, read_json
from tokenizer_svc.model.images import ImageTokens
from tokenizer_svc.model.infilling import Infilling
from tokenizer_svc.model.longest import characters_per_token
from tokenizer_svc.model.panic import no_panic
from tokenizer_svc.model.pooling import Ways, ways_in
from tokenizer_svc.model.token_bytes import TokenBytes

_PLACES = (2**32 - 1, 2**32 - 2)
"""Numbers of the library's type for tokens that no token has."""


@dataclass(frozen=True, repr=False)
class TextModel:
    """How a model's text becomes tokens and back. Immutable; all requests share it."""

    tokenizer: tokenizers.Tokenizer
    vocab_size: int
    """Token ids are below this."""
    end_tokens: tuple[int, ...]
    """Token ids, each of which ends an answer."""
    defaults: Mapping[str, float]
    """Sampling parameters for requests that leave them out; see `defaults.py`."""
    template: str | None
    """Source of the chat template. None: the model has none, so it takes plain prompts only."""
    tool_template: str | None
    """That of conversations with functions. None: the same."""
    named_tokens: Mapping[str, str]
    """What a template sees besides the conversation: texts of tokens such as bos_token, by their names."""
    every_token: TokenBytes
    """The bytes of all tokens."""
    plain_tokens: TokenBytes
    """The bytes of all tokens; special tokens have no bytes."""
    special_tokens: Mapping[str, int]
    """Ids of the special tokens, by their text."""
    grammar_tokens: Mapping[str, int]
    """Ids of the tokens that are special to a grammar, by their text; see `special_tokens.py`. Tokens without
    a row in the model are left out."""
    pooling_ways: Ways
    """What makes embeddings of hidden states; see `pooling.py`."""
    classifier: Classifier | None
    """What a classifier classifies; None for other models."""
    bidirectional: bool
    """The model is an encoder, which generates no text."""
    pair_arguments: Mapping[str, Any] | None
    """Arguments of the chat template, which joins a query and a document; None: the tokenizer joins them. See
    `classification.py`."""
    token_characters: int | None
    """Characters that one token stands for at most; None if no number is certain. See `longest.py`."""
    images: ImageTokens | None
    """How prompts spell images; None: the model takes none."""
    infilling: Infilling | None
    """How prompts spell a text with a gap; None: the vocabulary has no tokens for one."""
    aside: Aside = field(default_factory=Aside)
    """Where long texts are encoded."""

    @classmethod
    def load(cls, directory: Path, image_tokens: int = 0) -> Self:
        """Read a Hugging Face directory. Raises `ModelDirectoryError` with one line on what is wrong.

        `image_tokens`: tokens of one image, at most, that see something; 0: images are not taken.
        """
        if not directory.is_dir():
            raise ModelDirectoryError(f"{directory} is not a directory")
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelDirectoryError(f"{directory} is not a model directory: it has no tokenizer.json")
        tokenizer, content = _read_tokenizer(path)
        decoder = content.get("decoder")
        # Truncation and padding, which a file may ask for when it was made for training.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        named = named_tokens(directory)
        config = read_config(directory / "config.json")
        generation = read_json(directory / "generation_config.json")
        added = tokenizer.get_added_tokens_decoder()
        special = {one.content: token for token, one in added.items() if one.special}
        rows = _vocab_size(tokenizer, config)
        marks = {
            one.content: token
            for token, one in added.items()
            if token < rows and is_special(one.content, one.special)
        }
        templates, bidirectional = chat_templates(directory), encoder_family(config) is not None
        template = templates.get("default")
        return cls(
            tokenizer=tokenizer,
            vocab_size=rows,
            end_tokens=() if bidirectional else tuple(end for end in _end_tokens(directory) if end < rows),
            defaults=read_defaults(directory / "generation_config.json", generation),
            template=template,
            tool_template=templates.get("tool_use") if template is not None else None,
            named_tokens=named,
            every_token=TokenBytes(tokenizer, decoder, (), bidirectional),
            plain_tokens=TokenBytes(tokenizer, decoder, special.values(), bidirectional),
            special_tokens=special,
            grammar_tokens=marks,
            pooling_ways=ways_in(directory, bidirectional),
            classifier=_classifier_of(directory, config),
            bidirectional=bidirectional,
            pair_arguments=pair_arguments(template, read_json(directory / SETTINGS)),
            token_characters=characters_per_token(content),
            images=ImageTokens.load(directory, tokenizer, image_tokens) if image_tokens else None,
            infilling=Infilling.find(tokenizer.get_vocab(), special, rows),
        )

    def encode(self, text: str, special: bool) -> list[int]:
        """Text as tokens; `special` adds the tokens with which the tokenizer begins and ends a text.

        Takes about 1 s for a million characters, in which other threads run. Raises `PanicError`.
        """
        ids: list[int] = self._encode_safely(text, special).ids
        return ids

    def encode_each(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each text, without special ones. Raises `PanicError`."""
        try:
            with no_panic():
                return [one.ids for one in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        except PanicError:
            self._end_unless_it_works()
            raise

    def begin_tokens(self) -> list[int]:
        """The tokens with which the tokenizer begins a text."""
        ids: list[int] = self._around(_PLACES[:1]).ids
        return ids[: ids.index(_PLACES[0])]

    def has_rows(self, tokens: Iterable[int]) -> bool:
        """Whether the model can write all of these tokens: its tokenizer may have more than it has rows."""
        return max(tokens, default=0) < self.vocab_size

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int]:
        """Two texts as the tokenizer joins them, and the index of the first token of type 1, with which the
        second text begins. 0: the tokenizer has no types. Raises `PanicError`."""
        return _with_second(self._encode_safely((first, second), special=True))

    def encode_start(self, texts: Sequence[str], most: int) -> tuple[list[int], int]:
        """At most `most` tokens of the start of one text, or of two, with special tokens.

        Of two texts the longer one is cut until it is as short as the other, then both, as transformers does.
        Returns the tokens and an index as `encode_pair` does; no tokens if there is no room for a token of
        each text. Raises `PanicError`.
        """
        room = most - self.tokenizer.num_special_tokens_to_add(len(texts) > 1)
        if room < len(texts):
            return [], 0
        parts = [self._encode_safely(text, special=False).ids for text in texts]
        lengths = _shortened([len(part) for part in parts], room)
        return self._joined([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def _joined(self, parts: Sequence[list[int]]) -> tuple[list[int], int]:
        """The tokens of one text or two with special tokens, and an index as `encode_pair` gives it.

        The library's own way keeps all that was cut off, and joins each piece of it with each of the other.
        """
        places = dict(zip(_PLACES, parts, strict=False))
        joined = self._around(places)
        ids, second = list[int](), 0
        for token, kind in zip(joined.ids, joined.type_ids, strict=True):
            if kind == 1 and second == 0:
                second = len(ids)
            ids += places.get(token, (token,))
        return ids, second

    def _around(self, places: Iterable[int]) -> tokenizers.Encoding:
        """Special tokens around texts, each of which is one of these numbers instead."""
        texts = []
        for place in places:
            text = self._encode("", special=False)
            text.pad(1, pad_id=place)
            texts.append(text)
        with no_panic():
            return self.tokenizer.post_process(texts[0], texts[1] if len(texts) > 1 else None)

    def _encode_safely(self, text: str | tuple[str, str], special: bool) -> tokenizers.Encoding:
        try:
            return self._encode(text, special)
        except PanicError:
            self._end_unless_it_works()
            raise

    def _encode(self, text: str | tuple[str, str], special: bool) -> tokenizers.Encoding:
        # The batch call is the one that releases the interpreter lock.
        with no_panic():
            return self.tokenizer.encode_batch_fast([text], add_special_tokens=special)[0]

    def _end_unless_it_works(self) -> None:
        """After a panic: a lock that it has left behind would make every further text fail."""
        try:
            self._encode("a", special=False)
        except PanicError as error:
            end_at_once(f"{error}; it fails for every text now, and this process ends")

    def check_fits(self, param: str, characters: int, context: int) -> None:
        """Raises `TooLongError` if a text of this length is longer than any that fits.

        `param`: its name for clients. `context`: tokens of the longest sequence; 0 if it is not known.
        """
        if context and self.token_characters and characters > context * self.token_characters:
            raise TooLongError(
                param,
                # Clients recognize these words, see `ContextExceeded` of the scheduler.
                f"prompt is too long: it has {characters} characters, more than {context} tokens can spell. "
                f"This model's maximum context length is {context} tokens, "
                "and your input exceeds the context window of this model.",
            )


def _with_second(joined: tokenizers.Encoding) -> tuple[list[int], int]:
    """The tokens, and the index of the first one of type 1; 0: there is none."""
    types = joined.type_ids
    return joined.ids, types.index(1) if 1 in types else 0


def _shortened(lengths: Sequence[int], room: int) -> Sequence[int]:
    """Lengths of one text or two that have `room` together."""
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    shorter = min(lengths)
    low, high = (shorter, room - shorter) if shorter <= room - shorter else (room // 2, room - room // 2)
    return (high, low) if lengths[0] > lengths[1] else (low, high)


def _read_tokenizer(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer, and the content of its file. Raises `ModelDirectoryError`."""
    try:
        source, content = tokenizer_content(path.parent)
        with no_panic():
            return tokenizers.Tokenizer.from_str(source), content
    except FileError as error:
        raise ModelDirectoryError(str(error)) from error
    # The library raises plain Exception for a file that it cannot read.
    except Exception as error:
        line = " ".join(str(error).split())[:500]
        raise ModelDirectoryError(f"{path} is not a tokenizer: {line}") from error


def _classifier_of(directory: Path, config: Mapping[str, Any]) -> Classifier | None:
    try:
        return classifier_of(directory, config)
    except FileError as error:
        raise ModelDirectoryError(str(error)) from error


def _end_tokens(directory: Path) -> list[int]:
    try:
        return end_tokens_in(directory)
    except FileError as error:
        raise ModelDirectoryError(str(error)) from error


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json about the language model, where the model has other parts as well."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else {}


def _vocab_size(tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any]) -> int:
    """Number of rows of the model's embedding. It may be larger than the tokenizer's vocabulary."""
    size = _text_config(config).get("vocab_size") or config.get("vocab_size")
    if size is None:
        return max(tokenizer.get_vocab().values(), default=-1) + 1
    if type(size) is not int or size < 1:
        raise ModelDirectoryError(f"config.json: vocab_size: {size!r} is not a number of tokens")
    return size
