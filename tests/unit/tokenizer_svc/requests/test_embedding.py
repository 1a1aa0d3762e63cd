"""Texts to be embedded, between a client and a scheduler that a test writes."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from proto.arrays import unpack
from proto.sampling_pb2 import ALL, CLS, LAST, MEAN, NO_POOLING
from proto.tokenizer_pb2 import EmbedRequest, TokenIds
from tests.support.dense import dense, write_modules
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.model.pooling import check_kind, pooling_of
from tokenizer_svc.model.tokenizer import TextModel

VECTOR = b"\0\0\x80?"


async def gives(_: Any, __: Any) -> bytes:
    return VECTOR


async def dies(_: Any, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "killed", (("quire-lost", "scheduler-1"),))
    raise AssertionError


async def refuses(_: Any, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too long", (("quire-param", "prompt"),))
    raise AssertionError


async def test_a_text_becomes_tokens(stub: Any, scheduler: Any, byte_level: TextModel) -> None:
    scheduler.embeddings = [gives]
    request = EmbedRequest(
        request_id="r",
        text="The fox",
        pooling=MEAN,
        dimensions=7,
        cache_salt="s",
        tenant="t",
        user="u",
        priority=-2,
    )
    response = await stub.Embed(request)
    (asked,) = scheduler.texts
    assert list(unpack(asked.tokens)) == byte_level.encode("The fox", special=True)
    assert (asked.request_id, asked.pooling, asked.dimensions) == ("r", MEAN, 7)
    assert (asked.cache_salt, asked.tenant, asked.user, asked.priority) == ("s", "t", "u", -2)
    assert (response.embedding, response.tokens) == (VECTOR, len(asked.tokens) // 4)


async def test_tokens_stay_as_they_are(stub: Any, scheduler: Any) -> None:
    scheduler.embeddings = [gives]
    assert (await stub.Embed(EmbedRequest(tokens=TokenIds(ids=[5, 9])))).tokens == 2
    assert tuple(unpack(scheduler.texts[0].tokens)) == (5, 9)
    assert scheduler.texts[0].pooling == LAST


async def test_another_scheduler_is_asked_when_one_dies(stub: Any, scheduler: Any) -> None:
    scheduler.embeddings = [dies, gives]
    assert (await stub.Embed(EmbedRequest(text="The fox"))).embedding == VECTOR
    first, second = scheduler.texts
    assert first == second
    assert "quire-attempt" not in scheduler.metadata[0]
    assert scheduler.metadata[1]["quire-attempt"] == "1"


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (EmbedRequest(), "prompt"),
        (EmbedRequest(tokens=TokenIds()), "prompt"),
        (EmbedRequest(tokens=TokenIds(ids=[10**6])), "prompt"),
        (EmbedRequest(text="The fox", pooling=9), "pooling"),
        (EmbedRequest(text="The fox", pooling=CLS), "pooling"),
        (EmbedRequest(text="what the scheduler refuses"), "prompt"),
    ],
)
async def test_what_is_refused(stub: Any, scheduler: Any, request_: EmbedRequest, param: str) -> None:
    scheduler.embeddings = [refuses]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Embed(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(caught.value.trailing_metadata())["quire-param"] == param


async def test_a_text_that_no_context_has_room_for(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Embed(EmbedRequest(text="x" * 2_000_001))
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        (None, LAST),
        ({"word_embedding_dimension": 8}, MEAN),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, MEAN),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False, "include_prompt": True}, LAST),
        ({"embedding_dimension": 8, "pooling_mode": "mean", "include_prompt": True}, MEAN),
        ({"pooling_mode": "lasttoken"}, LAST),
        ({"pooling_mode": ["lasttoken"]}, LAST),
        ({"pooling_mode": "cls"}, NO_POOLING),
        ({"pooling_mode": ["mean", "max"]}, NO_POOLING),
        ({"pooling_mode_cls_token": True}, NO_POOLING),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, NO_POOLING),
    ],
)
def test_the_way_of_the_model(byte_level: TextModel, tmp_path: Path, config: Any, pooling: int) -> None:
    byte_level.tokenizer.save(str(tmp_path / "tokenizer.json"))
    if config is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    model = TextModel.load(tmp_path)
    if pooling != NO_POOLING:
        assert pooling_of(model.pooling_ways, model.bidirectional) == pooling
        return
    with pytest.raises(InvalidRequestError, match=r"\((cls|mean and max|max and mean)\) is not supported"):
        pooling_of(model.pooling_ways, model.bidirectional)


def test_a_model_with_a_vector_for_each_token(byte_level: TextModel, tmp_path: Path) -> None:
    byte_level.tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_modules(tmp_path, [("Dense", dense(8, 4))])
    ways = TextModel.load(tmp_path).pooling_ways
    check_kind(ALL, ways, bidirectional=False)
    with pytest.raises(
        InvalidRequestError, match=r"a vector for each token \(/pooling\), and none for a text"
    ):
        pooling_of(ways, bidirectional=False)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ([], ""),
        (["modules.normalize.Normalize"], ""),
        (["modules.dense.Dense"], ""),
        (["modules.layer_norm.LayerNorm"], "this model's pooling (mean and LayerNorm)"),
    ],
)
def test_modules_after_the_pooling(byte_level: TextModel, tmp_path: Path, after: Any, message: str) -> None:
    """What would have to be computed after the pooling is not left out."""
    byte_level.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "2_Pooling").mkdir()
    (tmp_path / "2_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "config.json").write_text(json.dumps(dense(8, 4)))
    kinds = ["models.Transformer", "sentence_transformer.modules.pooling.Pooling", *after]
    paths = ["", "2_Pooling", "3"]
    modules = [
        {"type": f"sentence_transformers.{kind}", "path": path}
        for kind, path in zip(kinds, paths, strict=False)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    ways = TextModel.load(tmp_path).pooling_ways
    if not message:
        assert pooling_of(ways, bidirectional=False) == MEAN
        check_kind(ALL, ways, bidirectional=False)
        return
    with pytest.raises(InvalidRequestError, match=r"vectors of tokens \(LayerNorm\) are not supported"):
        check_kind(ALL, ways, bidirectional=False)
    with pytest.raises(InvalidRequestError) as caught:
        pooling_of(ways, bidirectional=False)
    assert message in str(caught.value)
