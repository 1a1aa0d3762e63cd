"""What tells tokenizers apart, and who goes on with whose answer."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ops.model_directory.settings import SHIPPED_MODEL
from proto.sampling_pb2 import LENGTH
from proto.scheduler_pb2 import GenerateResponse, SequenceDelta, SequenceSoFar
from proto.tokenizer_pb2 import TextRequest, TextSoFar
from proto.tokenizer_pb2_grpc import TokenizerStub
from tests.unit.tokenizer_svc.conftest import serving
from tokenizer_svc.model import fingerprint
from tokenizer_svc.model.fingerprint import (
    fingerprint_of,
    joined,
    tokenizer_part,
    trial_fingerprint,
    worker_part,
)
from tokenizer_svc.model.tokenizer import TextModel


def test_settings_of_images_count_for_models_that_take_them(tmp_path: Path) -> None:
    shutil.copyfile(SHIPPED_MODEL / "tokenizer.json", tmp_path / "tokenizer.json")
    without = fingerprint_of(tmp_path)
    found = {without, *(fingerprint_of(tmp_path, image_tokens=most) for most in (512, 1024))}
    for name in ("preprocessor_config.json", "processor_config.json"):
        (tmp_path / name).write_text("{}")
        assert fingerprint_of(tmp_path) == without
        found.add(fingerprint_of(tmp_path, image_tokens=1024))
    assert len(found) == 5


def test_files_that_decide_the_text_count_and_their_times_do_not(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "config.json"):
        shutil.copyfile(SHIPPED_MODEL / name, tmp_path / name)
    first = fingerprint_of(tmp_path)
    os.utime(tmp_path / "tokenizer.json", (1, 1))
    (tmp_path / "README.md").write_text("x")
    assert fingerprint_of(tmp_path) == first
    found = {first}
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.json"):
        with (tmp_path / name).open("a") as file:
            file.write(" ")
        found.add(fingerprint_of(tmp_path))
    assert len(found) == 4


def test_formats_whose_marks_are_part_of_the_text_count(tmp_path: Path) -> None:
    chosen: list[tuple[str, ...]] = [(), ("none", "think"), ("hermes", "think"), ("hermes", "none")]
    assert len({fingerprint_of(tmp_path, formats=names) for names in chosen}) == len(chosen)


def test_whatever_tries_grammars_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(Path(fingerprint.__file__).parents[1], tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(fingerprint, "__file__", str(tmp_path / "model" / "fingerprint.py"))
    found = [trial_fingerprint.__wrapped__()]
    assert found == [trial_fingerprint()], "wherever the code lies"
    with (tmp_path / "grammars" / "call_grammar.py").open("a") as file:
        file.write("\n")
    found.append(trial_fingerprint.__wrapped__())
    monkeypatch.setattr("ops.model_directory.grammars.VERSION", "another")
    found.append(trial_fingerprint.__wrapped__())
    monkeypatch.setattr("sys.version", "another")
    found.append(trial_fingerprint.__wrapped__())
    assert len(set(found)) == 4


def test_both_parts_come_back() -> None:
    assert (tokenizer_part(joined("t", "w")), worker_part(joined("t", "w"))) == ("t", "w")
    assert (tokenizer_part(joined("", "w")), worker_part(joined("", "w"))) == ("", "w")
    assert (tokenizer_part(""), worker_part(""), joined("", "")) == ("", "", "")


@pytest.fixture
async def named(byte_level: TextModel, scheduler: Any) -> AsyncIterator[TokenizerStub]:
    """The service with a fingerprint of its own, between plain gRPC connections."""
    async with serving(byte_level, scheduler, None, fingerprint="ours") as stub:
        yield stub


def says(worker: str, dies: bool = False) -> Any:
    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        first = SequenceDelta(index=0, tokens=b"\x0a\0\0\0")
        yield GenerateResponse(deltas=[first], fingerprint=worker)
        if dies:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "it died")
        last = SequenceDelta(index=0, tokens=b"\x0b\0\0\0", finish_reason=LENGTH)
        yield GenerateResponse(deltas=[last])

    return script


async def test_the_first_chunk_tells_who_answers(named: TokenizerStub, scheduler: Any) -> None:
    scheduler.scripts = [says("a")]
    chunks = [chunk async for chunk in named.Generate(TextRequest(text="x", n=1))]
    assert chunks[0].prompt.fingerprint == "ours a"
    assert scheduler.starts[0].fingerprint == "", "any worker may begin"


async def test_every_scheduler_is_told_of_the_adapter(named: TokenizerStub, scheduler: Any) -> None:
    scheduler.scripts = [says("a", dies=True), says("a")]
    assert [chunk async for chunk in named.Generate(TextRequest(text="x", n=1, adapter="sql"))]
    assert [start.adapter for start in scheduler.starts] == ["sql", "sql"]


async def test_the_next_scheduler_is_told_who_began(named: TokenizerStub, scheduler: Any) -> None:
    scheduler.scripts = [says("a", dies=True), says("a")]
    chunks = [chunk async for chunk in named.Generate(TextRequest(text="x", n=1))]
    assert len(chunks) == 3
    assert [start.fingerprint for start in scheduler.starts] == ["", "a"]


async def test_a_request_is_gone_on_with_as_it_was_begun(named: TokenizerStub, scheduler: Any) -> None:
    scheduler.scripts = [says("a")]
    resumed = [TextSoFar(index=0, token_ids=[10], text_length=1)]
    request = TextRequest(text="x", n=1, resumed=resumed, fingerprint="ours a")
    assert [chunk async for chunk in named.Generate(request)]
    (start,) = scheduler.starts
    assert start.fingerprint == "a"
    assert list(start.resumed) == [SequenceSoFar(index=0, tokens=b"\x0a\0\0\0")]


async def test_what_another_tokenizer_began_is_left_to_it(named: TokenizerStub, scheduler: Any) -> None:
    resumed = [TextSoFar(index=0, token_ids=[10], text_length=1)]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in named.Generate(TextRequest(text="x", n=1, resumed=resumed, fingerprint="theirs a")):
            pass
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert scheduler.starts == []
    scheduler.scripts = [says("a")]
    fresh = TextRequest(text="x", n=1, fingerprint="theirs a")
    assert [chunk async for chunk in named.Generate(fresh)], "nothing has been delivered yet"
