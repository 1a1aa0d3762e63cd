"""Texts for a classifier, between a client and a scheduler that a test writes."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from ops.model_directory.classifier import Classifier, Function
from proto.arrays import FLOAT32, pack, unpack
from proto.sampling import greedy
from proto.sampling_pb2 import CLASSIFY, MEAN
from proto.tokenizer_pb2 import ChatMessage, Conversation, EmbedRequest, TextPair, TextRequest
from proto.tokenizer_pb2_grpc import TokenizerStub
from tests.unit.tokenizer_svc.conftest import serving
from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError, SchedulerError, TooLongError
from tokenizer_svc.model.classification import classified, pair_arguments
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.prompt import Render, input_tokens
from tokenizer_svc.templates.template import ChatTemplate

LABELS = ("no", "maybe", "yes")
LOGITS = [0.5, -200.0, 3.25]
PAIRS = "{% for m in messages %}{% if m.role == 'query' %}Q:{{ m.content }}{% endif %}{% endfor %}"
PAIRS += """{% for m in messages if m["role"] == "document" %} D:{{ m.content }}{% endfor %}"""
PAIRS += "{{ mark }}{% if add_generation_prompt %}!{% endif %}"


def classifier_of(function: Function = "softmax", labels: tuple[str, ...] = LABELS) -> Classifier:
    return Classifier(labels, function)


@pytest.fixture
def classifies(byte_level: TextModel) -> TextModel:
    return replace(byte_level, classifier=classifier_of())


@pytest.mark.parametrize(
    ("function", "theirs"),
    [("softmax", lambda x: x.softmax(0)), ("sigmoid", torch.sigmoid), ("none", lambda x: x)],
)
def test_functions_are_those_of_pytorch(function: Function, theirs: Callable[[Any], Any]) -> None:
    logits = torch.tensor([*LOGITS[:2], 800.0])
    for part in (logits, logits[:2]):
        labels = LABELS[: len(part)]
        found, label = classified(classifier_of(function, labels), pack(part.tolist(), FLOAT32), raw=False)
        torch.testing.assert_close(torch.tensor(list(unpack(found, FLOAT32))), theirs(part))
        assert label == labels[int(part.argmax())]


def test_logits_as_they_are() -> None:
    packed = pack(LOGITS, FLOAT32)
    assert classified(classifier_of(), packed, raw=True) == (packed, "yes")


def test_another_number_of_logits() -> None:
    with pytest.raises(SchedulerError, match="2 logits of a model with 3 labels"):
        classified(classifier_of(), pack(LOGITS[:2], FLOAT32), raw=False)


def gives(logits: list[float]) -> Any:
    async def embed(_: Any, __: Any) -> bytes:
        return pack(logits, FLOAT32)

    return embed


@pytest.fixture
async def stub(classifies: TextModel, scheduler: Any, render: Render) -> AsyncIterator[TokenizerStub]:
    """The service of the classifier."""
    async with serving(classifies, scheduler, render) as stub:
        yield stub


async def test_a_text_is_classified(stub: Any, scheduler: Any, classifies: TextModel) -> None:
    scheduler.embeddings = [gives(LOGITS), gives(LOGITS)]
    response = await stub.Embed(EmbedRequest(text="The fox", pooling=CLASSIFY))
    assert response.label == "yes"
    assert sum(unpack(response.embedding, FLOAT32)) == pytest.approx(1)
    assert response.tokens == len(classifies.encode("The fox", special=True))
    raw = await stub.Embed(EmbedRequest(text="The fox", pooling=CLASSIFY, raw=True))
    assert (list(unpack(raw.embedding, FLOAT32)), raw.label) == (LOGITS, "yes")
    assert {one.pooling for one in scheduler.texts} == {CLASSIFY}


async def test_a_conversation_is_classified(
    stub: Any, scheduler: Any, classifies: TextModel, encode_chat: Callable[..., list[int]]
) -> None:
    scheduler.embeddings = [gives(LOGITS)]
    chat = Conversation(messages=[ChatMessage(role="user", content="The fox")])
    await stub.Embed(EmbedRequest(chat=chat, pooling=CLASSIFY))
    wanted = encode_chat(classifies, [{"role": "user", "content": "The fox"}])
    assert list(unpack(scheduler.texts[0].tokens)) == wanted


async def asked(stub: Any, request: EmbedRequest | TextRequest) -> None:
    if isinstance(request, TextRequest):
        await anext(aiter(stub.Generate(request)))
    else:
        await stub.Embed(request)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (EmbedRequest(text="a"), "it embeds no text"),
        (EmbedRequest(text="a", pooling=MEAN), "it embeds no text"),
        (TextRequest(text="a", n=1, sampling=greedy()), "it generates no text"),
    ],
)
async def test_a_classifier_does_nothing_else(stub: Any, request_: Any, message: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
        await asked(stub, request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(caught.value.trailing_metadata())["quire-param"] == "model"


async def test_other_models_do_not_classify(byte_level: TextModel, scheduler: Any, render: Render) -> None:
    async with serving(byte_level, scheduler, render) as stub:
        with pytest.raises(grpc.aio.AioRpcError, match="no classification head") as caught:
            await stub.Embed(EmbedRequest(text="a", pooling=CLASSIFY))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def pair(query: str, document: str) -> EmbedRequest:
    return EmbedRequest(pair=TextPair(query=query, document=document), pooling=CLASSIFY)


@pytest.mark.parametrize("document", ["saw snow", "saw snow. " * 1000])
async def test_a_pair_is_joined_as_transformers_does(
    byte_level: TextModel, render: Render, document: str, tmp_path: Path
) -> None:
    """The chat template has no roles for it."""
    tokenizer = Tokenizer.from_str(byte_level.tokenizer.to_str())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A </s> $B", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    model = replace(byte_level, tokenizer=tokenizer)
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer)("The fox", document)["input_ids"]
    found, _ = await input_tokens(model, pair("The fox", document), render=render)
    assert found == theirs
    assert theirs[0] == 0
    assert 1 in theirs


@pytest.mark.parametrize(("given", "end"), [({}, ""), ({"add_generation_prompt": True, "mark": "?"}, "?!")])
async def test_a_pair_in_the_roles_of_a_template(byte_level: TextModel, given: Any, end: str) -> None:
    template = ChatTemplate(PAIRS, byte_level.named_tokens)

    async def render(messages: Any, arguments: Any, tools: Any, _: str, rendering: Any) -> str:
        return template.render(messages, arguments, tools, rendering)

    model = replace(byte_level, template=PAIRS, pair_arguments=given)
    found, second = await input_tokens(model, pair("The fox", "saw snow"), render=render)
    assert (found, second) == (byte_level.encode("Q:The fox D:saw snow" + end, special=False), 0)


async def test_what_a_template_makes_is_not_cut(byte_level: TextModel) -> None:
    model = replace(byte_level, template=PAIRS, pair_arguments={})
    asked = pair("The fox", "saw snow")
    asked.truncate_prompt_tokens = 5
    with pytest.raises(InvalidRequestError, match="cannot be cut") as caught:
        await input_tokens(model, asked)
    assert caught.value.param == "truncate_prompt_tokens"


def test_templates_with_these_roles(byte_level: TextModel) -> None:
    assert pair_arguments(PAIRS, {}) == {}
    assert pair_arguments(PAIRS, {"processing_kwargs": {"text": {"max_length": 8}}}) == {}
    settings = {"add_generation_prompt": True, "restore_suffix": True, "max_length": 9}
    settings = {"processing_kwargs": {"chat_template": settings}}
    assert pair_arguments(PAIRS, settings) == {"add_generation_prompt": True}
    for template in (byte_level.template, "{{ query }} {{ document }} 'query'", None):
        assert pair_arguments(template, settings) is None


async def test_pairs_that_are_too_long_or_empty(byte_level: TextModel) -> None:
    with pytest.raises(TooLongError):
        await input_tokens(byte_level, pair("x" * 1_000_001, "y" * 1_000_000))
    plain = replace(byte_level, tokenizer=_without_special(byte_level))
    with pytest.raises(InvalidRequestError, match="empty"):
        await input_tokens(plain, pair("", ""))


def _without_special(model: TextModel) -> Tokenizer:
    content = json.loads(model.tokenizer.to_str())
    content["post_processor"] = None
    return Tokenizer.from_str(json.dumps(content))


def test_a_directory_says_what_the_labels_are(byte_level: TextModel, tmp_path: Path) -> None:
    byte_level.tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert TextModel.load(tmp_path).classifier == Classifier(("no", "yes"), "softmax")
    (tmp_path / "config.json").write_text(json.dumps(config | {"problem_type": "ranking"}))
    with pytest.raises(ModelDirectoryError, match=r"config\.json: problem_type"):
        TextModel.load(tmp_path)
