"""Texts for encoders: tokens, token types and pooling are those of transformers and sentence-transformers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from proto.arrays import unpack
from proto.sampling import greedy
from proto.sampling_pb2 import CLASSIFY, CLS, LAST, MEAN
from proto.tokenizer_pb2 import EmbedRequest, TextPair, TextRequest
from tests.support.dense import dense
from tests.unit.tokenizer_svc.conftest import serving
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.embedding import tokens_request

PAIRS = [("The Foxes", "snow"), ("fox [SEP] snow", "the snow [SEP]"), ("fox", " "), ("", "fox")]


def word_piece(words: Sequence[str] = ("the", "fox", "snow", "##es", "saw")) -> Tokenizer:
    """As of BERT, and with what sentence-transformers leaves in the file."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
    tokenizer = Tokenizer(
        models.WordPiece({word: at for at, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(vocabulary[:4])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=12)
    return tokenizer


def unigram() -> Tokenizer:
    """As of XLM-RoBERTa."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [
        (piece, -float(at)) for at, piece in enumerate(("▁the", "▁fox", "es", "▁snow", "▁", "T", "F", "he"))
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    return tokenizer


KINDS: dict[str, tuple[Callable[[], Tokenizer], str]] = {
    "word piece": (word_piece, "BertModel"),
    "unigram": (unigram, "XLMRobertaModel"),
}


def saved(directory: Path, kind: str, head: str = "Model", **files: Any) -> TextModel:
    tokenizer, architecture = KINDS[kind]
    tokenizer().save(str(directory / "tokenizer.json"))
    config = {"architectures": [architecture.replace("Model", head)], "num_labels": 1}
    for path, value in {"config.json": config, **files}.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_text(json.dumps(value))
    return TextModel.load(directory)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pair", PAIRS)
async def test_pairs_with_their_types(tmp_path: Path, kind: str, pair: tuple[str, str]) -> None:
    model = saved(tmp_path, kind, "ForSequenceClassification")
    bare = KINDS[kind][0]()
    bare.no_truncation()
    bare.no_padding()
    theirs = PreTrainedTokenizerFast(tokenizer_object=bare)(*pair, return_token_type_ids=True)
    asked = await tokens_request(
        model, EmbedRequest(pair=TextPair(query=pair[0], document=pair[1]), pooling=CLASSIFY)
    )
    tokens = list(unpack(asked.tokens))
    assert tokens == theirs["input_ids"]
    second = asked.second_segment
    assert [int(0 < second <= place) for place in range(len(tokens))] == theirs["token_type_ids"]


LONG = [
    ["the fox saw snow the foxes"],
    ["fox", "the snow the snow the snow"],
    ["the snow the snow", "the fox"],
]
LONG += [["the fox saw", "the fox saw"], ["the fox saw snow", "the fox saw"], ["", "the fox saw"]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", LONG)
async def test_texts_are_cut_as_transformers_does(tmp_path: Path, kind: str, texts: list[str]) -> None:
    model, bare = saved(tmp_path, kind, "ForSequenceClassification"), KINDS[kind][0]()
    bare.no_truncation()
    bare.no_padding()
    theirs = PreTrainedTokenizerFast(tokenizer_object=bare)
    request = EmbedRequest(pooling=CLASSIFY)
    if len(texts) == 1:
        request.text = texts[0]
    else:
        request.pair.query, request.pair.document = texts
    special = bare.num_special_tokens_to_add(len(texts) > 1)
    for most in range(special + len(texts), 20):
        request.truncate_prompt_tokens = most
        wanted = theirs(*texts, truncation=True, max_length=most, return_token_type_ids=True)
        asked = await tokens_request(model, request)
        tokens, second = list(unpack(asked.tokens)), asked.second_segment
        assert tokens == wanted["input_ids"]
        assert [int(0 < second <= place) for place in range(len(tokens))] == wanted["token_type_ids"]
    request.truncate_prompt_tokens = special
    with pytest.raises(InvalidRequestError, match="no room for a text"):
        await tokens_request(model, request)


async def test_what_is_cut_off_costs_nothing(tmp_path: Path) -> None:
    """Pieces of one text with pieces of the other would be 1.6 billion pairs."""
    model, request = saved(tmp_path, "word piece", "ForSequenceClassification"), EmbedRequest()
    request.pair.query, request.pair.document = "the fox saw snow " * 10_000, "the snow " * 20_000
    request.truncate_prompt_tokens, request.pooling = 5, CLASSIFY
    asked = await tokens_request(model, request)
    assert (list(unpack(asked.tokens)), asked.second_segment) == ([2, 4, 3, 4, 3], 3)


async def test_texts_are_cut_to_the_context(tmp_path: Path) -> None:
    async def context() -> int:
        return 5

    model, request = saved(tmp_path, "word piece"), EmbedRequest(truncate_prompt_tokens=-1)
    request.text = "the fox " * 10_000
    asked = await tokens_request(model, request, context)
    assert list(unpack(asked.tokens)) == [2, 4, 5, 4, 3]
    request.tokens.ids[:] = [4, 5, 6, 7, 8, 4, 5]
    asked = await tokens_request(model, request, context)
    assert list(unpack(asked.tokens)) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("kind", KINDS)
async def test_one_text_is_of_one_type(tmp_path: Path, kind: str) -> None:
    model = saved(tmp_path, kind)
    text = "the fox [SEP] </s> snow"
    asked = await tokens_request(model, EmbedRequest(text=text))
    assert (list(unpack(asked.tokens)), asked.second_segment) == (model.encode(text, special=True), 0)
    assert asked.pooling == CLS


def test_the_bytes_of_word_pieces(tmp_path: Path) -> None:
    model = saved(tmp_path, "word piece")
    tokens = model.encode("the foxes saw", special=False)
    assert b"".join(model.every_token[token] for token in tokens) == b" the foxes saw"


@pytest.mark.parametrize(
    ("config", "modules", "pooling"),
    [
        ({"pooling_mode_mean_tokens": True}, ["Transformer", "Pooling", "Normalize"], MEAN),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
            ["Transformer", "Pooling"],
            CLS,
        ),
        ({"pooling_mode_lasttoken": True}, [], LAST),
        ({"pooling_mode_max_tokens": True}, [], None),
        ({"pooling_mode_mean_tokens": True}, ["Transformer", "Pooling", "Dense", "Normalize"], MEAN),
        ({"pooling_mode_mean_tokens": True}, ["Transformer", "Pooling", "LSTM"], None),
    ],
)
async def test_a_directory_of_sentence_transformers(
    tmp_path: Path, config: Any, modules: list[str], pooling: int | None
) -> None:
    listed = [
        {"type": f"sentence_transformers.models.{name}", "path": f"{at}_{name}" if at else ""}
        for at, name in enumerate(modules)
    ]
    files = {"1_Pooling/config.json": config, "2_Dense/config.json": dense(8, 4), "modules.json": listed}
    model = saved(tmp_path, "word piece", **files)
    if pooling is not None:
        assert (await tokens_request(model, EmbedRequest(text="fox"))).pooling == pooling
        return
    with pytest.raises(InvalidRequestError, match="is not supported: ask for cls, mean or last"):
        await tokens_request(model, EmbedRequest(text="fox"))
    assert (await tokens_request(model, EmbedRequest(text="fox", pooling=MEAN))).pooling == MEAN


async def test_an_encoder_generates_nothing(tmp_path: Path, scheduler: Any) -> None:
    async with serving(saved(tmp_path, "unigram"), scheduler, None) as stub:
        with pytest.raises(grpc.aio.AioRpcError, match="it generates no text") as caught:
            await anext(aiter(stub.Generate(TextRequest(text="a", n=1, sampling=greedy()))))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
