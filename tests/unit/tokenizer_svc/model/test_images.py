"""Images of conversations: their parts, their tokens, what is refused, and a store that lacks them."""

import asyncio
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from PIL import Image
from tokenizers import AddedToken, Tokenizer

from ops.model_directory import image_files
from ops.model_directory.vision import AreaVision, EdgeVision, Grid
from ops.runtime.image_store import ImageGone, ImageStore, image_file
from proto.arrays import unpack
from proto.images_pb2 import ImageFile, PromptImage
from proto.rpc import BusAway
from proto.sampling_pb2 import LENGTH, NOT_FINISHED, SamplingParams
from proto.scheduler_pb2 import GenerateResponse, SequenceDelta
from proto.tokenizer_pb2 import (
    ChatMessage,
    ContentImage,
    Conversation,
    EmbedRequest,
    TextRequest,
    TextSoFar,
    TokenizeRequest,
)
from tests.support.spans import exported_to
from tests.unit.tokenizer_svc.conftest import FakeScheduler, save, serving
from tokenizer_svc import service
from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError
from tokenizer_svc.model import images as module
from tokenizer_svc.model.images import ImageSizes, in_parts
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.context import unknown
from tokenizer_svc.requests.prompt import input_tokens, prompt_of
from tokenizer_svc.templates.template import ChatTemplate, Rendering

PAD = "<|image_pad|>"
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] "
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<|see|><|image_pad|><|seen|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
QWEN = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "vision_config": {},
    "vocab_size": 1000,
}
PIXTRAL = {**QWEN, "architectures": ["Mistral3ForConditionalGeneration"]}
SETTINGS = {"min_pixels": 784, "max_pixels": 784 * 64}


def directory_of(byte_level: TextModel, directory: Path, config: dict[str, Any]) -> TextModel:
    tokenizer = Tokenizer.from_str(byte_level.tokenizer.to_str())
    names = ("<|see|>", PAD, "<|seen|>", "[IMG_BREAK]", "[IMG_END]")
    tokenizer.add_tokens([AddedToken(name, special=True) for name in names])
    config = {**config, "image_token_id": tokenizer.token_to_id(PAD)}
    settings = {"chat_template": TEMPLATE}
    return save(
        *(tokenizer, directory), tokenizer_config=settings, config=config, preprocessor_config=SETTINGS
    )


@pytest.fixture(scope="module")
def model(byte_level: TextModel, tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return directory_of(byte_level, tmp_path_factory.mktemp("seeing"), QWEN)


@pytest.fixture(scope="module")
def pixtral(byte_level: TextModel, tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return directory_of(byte_level, tmp_path_factory.mktemp("pixtral"), PIXTRAL)


async def render(
    messages: Sequence[Any], arguments: Any, tools: Sequence[Any], _: str, rendering: Rendering
) -> str:
    return ChatTemplate(TEMPLATE, {}).render(messages, arguments, tools, rendering)


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


class FakeStore(ImageStore):
    """Has what a test gives it, and counts what it is asked."""

    def __init__(self) -> None:
        self.images: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.away = False

    def add(self, image: bytes, name: str = "") -> ImageFile:
        file = image_file(name or f"image-{len(self.images)}", image)
        self.images[file.name] = image
        return file

    async def get(self, file: ImageFile) -> bytes:
        self.asked.append(file.name)
        if self.away:
            raise BusAway("Redis is away")
        if file.name not in self.images:
            raise ImageGone("an image of the request is not in Redis any more")
        return self.images[file.name]


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def sizes(store: FakeStore) -> ImageSizes:
    return ImageSizes(store)


def message(content: str, *images: tuple[int, ImageFile], low: bool = False, **more: Any) -> ChatMessage:
    seen = [ContentImage(file=file, offset=offset, low_detail=low) for offset, file in images]
    return ChatMessage(**{"role": "user", "content": content, "images": seen, **more})


def ask(*messages: ChatMessage, chat: dict[str, Any] | None = None, **more: Any) -> TextRequest:
    return TextRequest(n=1, chat=Conversation(messages=messages, **(chat or {})), **more)


def text(model: TextModel, tokens: Sequence[int]) -> str:
    return str(model.tokenizer.decode(tokens, skip_special_tokens=False))


async def test_each_placeholder_becomes_as_many_as_its_image_has(
    model: TextModel, store: FakeStore, sizes: ImageSizes
) -> None:
    wide, tall = store.add(png(56, 28)), store.add(png(28, 84))
    one, other = message("ab", (1, wide)), message("", (0, tall), (0, wide), role="tool")
    prompt = await prompt_of(model, ask(one, message("no image"), other), unknown, render, sizes)
    assert text(model, prompt.tokens) == (
        f"[user] a<|see|>{PAD * 2}<|seen|>b;[user] no image;"
        f"[tool] <|see|>{PAD * 3}<|seen|><|see|>{PAD * 2}<|seen|>;[assistant]"
    )
    assert [(each.rows, each.columns, each.tokens) for each in prompt.images] == [
        (1, 2, 2),
        (3, 1, 3),
        (1, 2, 2),
    ]
    assert [each.file for each in prompt.images] == [wide, tall, wide]
    assert not any(each.data for each in prompt.images)
    assert model.images is not None
    for each in prompt.images:
        run = prompt.tokens[each.position : each.position + each.tokens]
        assert set(run) == {model.images.vision.placeholder}
        assert prompt.tokens[each.position - 1] == model.special_tokens["<|see|>"]


async def test_rows_that_end_with_tokens(pixtral: TextModel, store: FakeStore, sizes: ImageSizes) -> None:
    file = store.add(png(64, 50))
    prompt = await prompt_of(pixtral, ask(message("", (0, file))), unknown, render, sizes)
    row = PAD * 2
    assert text(pixtral, prompt.tokens) == (
        f"[user] <|see|>{row}[IMG_BREAK]{row}[IMG_END]<|seen|>;[assistant]"
    )
    (image,) = prompt.images
    assert (image.tokens, image.rows, image.columns) == (6, 2, 2)


async def test_low_detail_has_fewer_tokens(model: TextModel, store: FakeStore, sizes: ImageSizes) -> None:
    assert model.images is not None
    assert isinstance(model.images.vision, AreaVision)
    vision = replace(model.images.vision, most=10**8)
    larger = replace(model, images=replace(model.images, vision=vision))
    file = store.add(png(1120, 1120))
    for low, tokens in ((False, 40 * 40), (True, 18 * 18)):
        request = ask(message("", (0, file), low=low))
        prompt = await prompt_of(larger, request, unknown, render, sizes)
        assert prompt.images[0].tokens == tokens


async def test_an_image_that_is_known_is_not_read_again(
    model: TextModel, store: FakeStore, sizes: ImageSizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = store.add(png(28, 28))
    again = ImageFile(name="another name", digest=file.digest)
    for each in (file, file, again):
        await prompt_of(model, ask(message("", (0, each))), unknown, render, sizes)
    assert store.asked == [file.name]
    monkeypatch.setattr(module, "KNOWN_SIZES", 1)
    await sizes.of(store.add(png(29, 29)), "")
    assert await sizes.of(file, "") == (28, 28)
    assert store.asked[-1] == file.name


async def test_a_text_with_a_placeholder_stays_what_it_is_without_images(
    model: TextModel, sizes: ImageSizes, store: FakeStore
) -> None:
    request = ask(message(f"what is {PAD}?"))
    prompt = await prompt_of(model, request, unknown, render, sizes)
    assert text(model, prompt.tokens) == f"[user] what is {PAD}?;[assistant]"
    assert not prompt.images
    assert not store.asked


async def drops(*_: Any) -> str:
    return "[user]"


@pytest.mark.parametrize(
    ("content", "rendered", "what"),
    [
        (f"what is {PAD}?", render, r"1 images and 2 times <\|image_pad\|>"),
        ("what?", drops, "template shows 0 of the conversation's 1 images"),
    ],
)
async def test_placeholders_and_images_must_be_as_many(
    model: TextModel, store: FakeStore, sizes: ImageSizes, content: str, rendered: Any, what: str
) -> None:
    request = ask(message(content, (0, store.add(png(28, 28)))))
    with pytest.raises(InvalidRequestError, match=what) as refused:
        await prompt_of(model, request, unknown, rendered, sizes)
    assert refused.value.param == "messages"
    assert "\n" not in str(refused.value)
    assert not store.asked


@pytest.mark.parametrize(
    ("images", "more", "param", "what"),
    [
        ([3], {}, "messages", "not in order within its text"),
        ([1, 0], {}, "messages", "not in order within its text"),
        ([0] * 65, {}, "messages", "at most 64 images, not 65"),
        ([0], {"truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "cannot be cut"),
        ([0], {"rolling_context": True}, "rolling_context", "forgotten"),
    ],
)
async def test_what_goes_with_no_image(
    model: TextModel,
    store: FakeStore,
    sizes: ImageSizes,
    images: list[int],
    more: dict[str, Any],
    param: str,
    what: str,
) -> None:
    file = store.add(png(28, 28))
    request = ask(message("ab", *((offset, file) for offset in images)), **more)
    with pytest.raises(InvalidRequestError, match=what) as refused:
        await prompt_of(model, request, unknown, render, sizes)
    assert refused.value.param == param
    assert not store.asked


async def test_models_and_calls_that_take_no_images(
    model: TextModel, byte_level: TextModel, store: FakeStore, sizes: ImageSizes
) -> None:
    request = ask(message("ab", (0, store.add(png(28, 28)))))
    with pytest.raises(InvalidRequestError, match="this model takes no images"):
        await prompt_of(byte_level, request, unknown, render, sizes)
    with pytest.raises(InvalidRequestError, match="no images") as refused:
        await input_tokens(model, EmbedRequest(chat=request.chat), render=render)
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    ("image", "what"),
    [
        (b"GIF89a", "in none of the formats"),
        (png(64, 64)[:60], "damaged or not whole"),
        (png(201, 1), "more than 200 times the other"),
    ],
)
async def test_files_that_cannot_be_seen(
    model: TextModel, store: FakeStore, sizes: ImageSizes, image: bytes, what: str
) -> None:
    request = ask(message("ab", (0, store.add(image))))
    with pytest.raises(InvalidRequestError, match=what) as refused:
        await prompt_of(model, request, unknown, render, sizes)
    assert refused.value.param == "messages"


async def test_the_tokens_of_images_count(
    model: TextModel, store: FakeStore, sizes: ImageSizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenizer_svc.requests.prompt.MAX_PROMPT_TOKENS", 60)
    request = ask(message("ab", (0, store.add(png(28 * 8, 28 * 8)))))
    with pytest.raises(InvalidRequestError, match="more than 60 tokens"):
        await prompt_of(model, request, unknown, render, sizes)


async def test_one_image_is_decoded_at_a_time_and_callers_may_leave(
    store: FakeStore, sizes: ImageSizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = 0, 0

    def slowly(data: bytes) -> tuple[int, int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        image_files.measured(data)
        running -= 1
        return 1, 1

    monkeypatch.setattr(module, "measured", slowly)
    files = [store.add(png(500 + number, 500)) for number in range(12)]
    asked = [asyncio.ensure_future(sizes.of(file, f"tenant {at % 3}")) for at, file in enumerate(files)]
    await asyncio.sleep(0)
    asked[0].cancel()
    asked[5].cancel()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(each, tuple) for each in found] == [at not in (0, 5) for at in range(12)]
    assert most == 1
    sizes.close()


parts = st.lists(st.one_of(st.text(min_size=1, max_size=4), st.none()), max_size=6)


@given(parts)
def test_parts_are_texts_and_images_in_order(given_parts: list[str | None]) -> None:
    content, offsets, expected = "", list[int](), list[dict[str, Any]]()
    for part in given_parts:
        if part is None:
            offsets.append(len(content))
            expected.append({"type": "image"})
        elif expected and expected[-1]["type"] == "text":
            expected[-1]["text"] += part
            content += part
        else:
            expected.append({"type": "text", "text": part})
            content += part
    file = ImageFile(name="a")
    assert in_parts(message(content, *((offset, file) for offset in offsets))) == expected


def test_directories_without_the_tokens(byte_level: TextModel, tmp_path: Path) -> None:
    assert byte_level.images is None
    tokenizer, config = byte_level.tokenizer, {**QWEN, "image_token_id": 900}
    with pytest.raises(ModelDirectoryError, match="has no token 900, which stands for images"):
        save(tokenizer, tmp_path, config=config, preprocessor_config=SETTINGS)
    config = {**PIXTRAL, "image_token_id": 5}
    with pytest.raises(ModelDirectoryError, match=r"has no \[IMG_BREAK\]"):
        save(tokenizer, tmp_path, config=config, preprocessor_config=SETTINGS)
    with pytest.raises(ModelDirectoryError, match=r"preprocessor_config\.json: min_pixels"):
        save(tokenizer, tmp_path, config={**QWEN, "image_token_id": 5}, preprocessor_config={"min_pixels": 0})


def test_runs_are_ids(pixtral: TextModel) -> None:
    assert pixtral.images is not None
    assert isinstance(pixtral.images.vision, EdgeVision)
    pad, row_end, end = (pixtral.special_tokens[name] for name in (PAD, "[IMG_BREAK]", "[IMG_END]"))
    assert pixtral.images.run(Grid(2, 1)) == [pad, row_end, pad, end]


def says(*tokens: int, lost: bool = False) -> Any:
    async def script(start: Any, context: Any) -> Any:
        done = len(unpack(start.resumed[0].tokens)) if start.resumed else 0
        for at, token in list(enumerate(tokens))[done:]:
            if lost and at == 1:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "it died")
            reason = LENGTH if at + 1 == len(tokens) else NOT_FINISHED
            packed = token.to_bytes(4, "little")
            yield GenerateResponse(deltas=[SequenceDelta(index=0, tokens=packed, finish_reason=reason)])

    return script


async def test_the_scheduler_is_told_of_images_with_each_try(
    model: TextModel, store: FakeStore, sizes: ImageSizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = exported_to(InMemorySpanExporter(), monkeypatch, service)
    scheduler = FakeScheduler()
    scheduler.scripts = [says(5, 6, lost=True), says(5, 6), says(5, 6, 7)]
    file = store.add(png(56, 28))
    fields = {"max_tokens": 3, "return_prompt_tokens": True, "echo": True, "sampling": SamplingParams()}
    async with serving(model, scheduler, render, sizes=sizes) as stub:
        request = ask(message("a", (1, file)), **fields)
        chunks = [chunk async for chunk in stub.Generate(request)]
        request.resumed.append(TextSoFar(index=0, token_ids=[5, 6]))
        assert [chunk async for chunk in stub.Generate(request)]
        tokenized = await stub.Tokenize(TokenizeRequest(request=request))
    told = [list(start.images) for start in scheduler.starts]
    begin = len(model.encode("[user] a<|see|>", special=False))
    image = PromptImage(file=file, position=begin, tokens=2, rows=1, columns=2)
    assert told == [[image]] * 3
    prompt = list(unpack(scheduler.starts[0].prompt_tokens))
    assert list(chunks[0].prompt.token_ids) == list(tokenized.token_ids) == prompt
    assert chunks[0].prompt.text == f"[user] a<|see|>{PAD * 2}<|seen|>;[assistant]"
    assert prompt[begin : begin + 2] == [model.special_tokens[PAD]] * 2
    encodings = [span for span in spans.get_finished_spans() if span.name == "tokenizer.encode"]
    assert [span.attributes["quire.images"] for span in encodings] == [1, 1]


@pytest.mark.parametrize("why", ["gone", "away"])
async def test_without_the_image_the_caller_tries_again(
    model: TextModel, store: FakeStore, sizes: ImageSizes, why: str
) -> None:
    store.away = why == "away"
    file = image_file("never put", png(28, 28))
    async with serving(model, FakeScheduler(), render, sizes=sizes) as stub:
        for call in (
            lambda: stub.Tokenize(TokenizeRequest(request=ask(message("a", (0, file))))),
            lambda: anext(aiter(stub.Generate(ask(message("a", (0, file)))))),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call()
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_last_message_with_images_goes_on_after_its_text() -> None:
    template, goes_on = ChatTemplate(TEMPLATE, {}), Rendering(continue_final_message=True)

    def rendered(*content: dict[str, str]) -> str:
        return template.render([{"role": "user", "content": list(content)}], rendering=goes_on)

    image = {"type": "image"}
    assert rendered(image, {"type": "text", "text": "It is "}) == f"[user] <|see|>{PAD}<|seen|>It is "
    with pytest.raises(InvalidRequestError, match="ends with an image"):
        rendered({"type": "text", "text": "It is "}, image)


def test_a_template_that_shows_parts_alone_gets_each_message_once() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% for part in m.content %}({{ part.type }}{{ part.text }}){% endfor %}"
        "{% endfor %}",
        {},
    )
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]},
        {"role": "user", "content": "b"},
    ]
    assert template.render(messages) == "(image)(texta)(textb)"


async def test_images_through_redis(model: TextModel, line: Any, prefix: str) -> None:
    store, image = ImageStore(line, prefix), png(28, 56)
    sizes, file = ImageSizes(store), image_file("a", image)
    request = ask(message("", (0, file)))
    with pytest.raises(ImageGone):
        await prompt_of(model, request, unknown, render, sizes)
    await store.put("a", image, 60)
    prompt = await prompt_of(model, request, unknown, render, sizes)
    assert [(each.rows, each.columns) for each in prompt.images] == [(2, 1)]


def test_a_directory_says_how_images_are_read(model: TextModel) -> None:
    assert model.images is not None
    assert model.images.placeholder == PAD
    assert model.images.vision == AreaVision(model.special_tokens[PAD], 28, 784, 784 * 64)
