"""Models with the two families of tokenizers, and a scheduler that says what a test tells it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from ops.model_directory.settings import SHIPPED_MODEL
from proto.scheduler_pb2 import EmbedTokensRequest, EmbedTokensResponse
from proto.scheduler_pb2_grpc import SchedulerServicer, SchedulerStub, add_SchedulerServicer_to_server
from proto.tokenizer_pb2_grpc import TokenizerStub, add_TokenizerServicer_to_server
from tokenizer_svc.formats.formats import Formats
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.context import unknown
from tokenizer_svc.requests.prompt import Render
from tokenizer_svc.service import TokenizerService
from tokenizer_svc.templates.template import ChatTemplate, Rendering

TEXTS = [
    "The quick brown fox jumps over the lazy dog. ",
    "naïve café — déjà vu, 東京 and 😀! ",
    "one two  three   ",
]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def save(tokenizer: Tokenizer, directory: Path, **config: Any) -> TextModel:
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, value in {"tokenizer_config": {"bos_token": "<s>", "eos_token": "</s>"}, **config}.items():
        (directory / f"{name}.json").write_text(json.dumps(value))
    return TextModel.load(directory, image_tokens=1024)


def begin(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    """Byte-level BPE as of GPT-2 and Llama 3; tokens split characters. It has a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("<｜tool▁call｜>", special=False)])
    begin(tokenizer)
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE}
    return save(tokenizer, tmp_path_factory.mktemp("byte_level"), tokenizer_config=config)


@pytest.fixture(scope="session", params=["sequence", "metaspace"])
def sentencepiece(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    """SentencePiece-like with byte fallback as of Llama 2, or with the Metaspace decoder alone."""
    small = Tokenizer(models.BPE(unk_token="<unk>"))
    small.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    small.train_from_iterator(["The quick brown fox jumps over the lazy dog. one two three"] * 20, trainer)
    model = json.loads(small.to_str())["model"]
    fallback = request.param == "sequence"
    if fallback:
        for byte in range(256):
            model["vocab"][f"<0x{byte:02X}>"] = len(model["vocab"])
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", byte_fallback=fallback))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    begin(tokenizer)
    if fallback:
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    return save(tokenizer, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def shipped() -> TextModel:
    """The tokenizer of the model that ships with the project."""
    if not (SHIPPED_MODEL / "tokenizer.json").exists():
        pytest.skip("the model that ships has not been made")
    return TextModel.load(SHIPPED_MODEL)


@pytest.fixture
def render(byte_level: TextModel) -> Render:
    """Renders the chat template of the byte-level model in this process."""
    assert byte_level.template is not None
    template = ChatTemplate(byte_level.template, byte_level.named_tokens)

    async def render(
        messages: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any],
        tools: Sequence[Any],
        _: str,
        rendering: Rendering,
    ) -> str:
        return template.render(messages, arguments, tools, rendering)

    return render


@pytest.fixture
def encode_chat() -> Callable[..., list[int]]:
    """A conversation as a model's tokens."""

    def encode(model: TextModel, messages: Sequence[Mapping[str, str]]) -> list[int]:
        assert model.template is not None
        text = ChatTemplate(model.template, model.named_tokens).render(messages)
        return model.encode(text, special=False)

    return encode


Script = Callable[[Any, Any], AsyncIterator[Any]]


class FakeScheduler(SchedulerServicer):
    """Answers each call by the next of `scripts`, and keeps what it was told."""

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.starts: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        self.ended: asyncio.Queue[int] = asyncio.Queue()
        self.cancelled = asyncio.Event()
        self.embeddings: list[Callable[[Any, Any], Awaitable[bytes]]] = []
        """What each call of Embed is answered by."""
        self.texts: list[EmbedTokensRequest] = []

    async def Embed(self, request: EmbedTokensRequest, context: Any) -> EmbedTokensResponse:
        self.texts.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        return EmbedTokensResponse(embedding=await self.embeddings.pop(0)(request, context))

    async def Generate(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        first = await anext(requests)
        for _ in range(first.start.more_resumed):
            first.start.resumed.append((await anext(requests)).resumed)
        self.starts.append(first.start)
        self.metadata.append(dict(context.invocation_metadata()))
        listening = asyncio.ensure_future(self._listen(requests))
        try:
            async for response in self.scripts.pop(0)(first.start, context):
                yield response
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            listening.cancel()

    async def _listen(self, requests: Any) -> None:
        async for request in requests:
            self.ended.put_nowait(request.end_sequence)


@pytest.fixture
async def scheduler() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
async def stub(
    byte_level: TextModel, scheduler: FakeScheduler, render: Render
) -> AsyncIterator[TokenizerStub]:
    """The service of the byte-level model between plain gRPC connections."""
    async with serving(byte_level, scheduler, render) as stub:
        yield stub


def service_of(model: TextModel, scheduler: Any, **parts: Any) -> TokenizerService:
    """The service of a model. What `parts` does not name it does without."""
    usual = {
        "context": unknown,
        "render": None,
        "fingerprint": "",
        "grammars": None,
        "formats": Formats(model),
        "sizes": None,
    }
    return TokenizerService(model, scheduler, **usual | parts)


@asynccontextmanager
async def serving(
    model: TextModel, scheduler: FakeScheduler, render: Render | None, **parts: Any
) -> AsyncIterator[TokenizerStub]:
    """The service of a model between plain gRPC connections. `parts`: as for `service_of`."""
    behind, front = grpc.aio.server(), grpc.aio.server()
    add_SchedulerServicer_to_server(scheduler, behind)
    port = behind.add_insecure_port("127.0.0.1:0")
    await behind.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        service = service_of(model, SchedulerStub(channel), render=render, **parts)
        add_TokenizerServicer_to_server(service, front)
        port = front.add_insecure_port("127.0.0.1:0")
        await front.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as outer:
            yield TokenizerStub(outer)
        await front.stop(None)
        await behind.stop(None)
