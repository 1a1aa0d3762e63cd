"""Texts with a gap as tokens: whatever a text spells, it is a text, and the marks are the model's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from proto.tokenizer_pb2 import Infill, ProjectFile, TextRequest
from tests.unit.tokenizer_svc.conftest import save
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.prompt import SHORT, prompt_tokens
from tokenizer_svc.requests.rules import stop_tokens

QWEN = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]
CODE_LLAMA = ["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"]
CODESTRAL = ["[SUFFIX]", "[PREFIX]"]


def with_tokens(model: TextModel, names: list[str], path, special: bool = False) -> TextModel:
    tokenizer = Tokenizer.from_str(model.tokenizer.to_str())
    tokenizer.add_tokens([AddedToken(name, special=special, normalized=False) for name in names])
    return save(tokenizer, path)


@pytest.fixture(scope="module")
def qwen(byte_level, tmp_path_factory):
    return with_tokens(byte_level, QWEN, tmp_path_factory.mktemp("qwen"))


async def tokens_of(model, before="", after="", files=(), **fields):
    files = [ProjectFile(name=name, text=text) for name, text in files]
    gap = Infill(before=before, after=after, files=files)
    return await prompt_tokens(model, TextRequest(infill=gap, **fields))


def ids(model, names):
    return [model.tokenizer.token_to_id(name) for name in names]


def text(model, tokens):
    return model.tokenizer.decode(tokens, skip_special_tokens=False)


async def test_before_and_after_the_gap(qwen):
    before, after, middle, *_ = ids(qwen, QWEN)
    fox, dog = (qwen.encode(one, special=False) for one in ("The fox ", " dog.\n"))
    expected = [before, *fox, after, *dog, middle]
    assert await tokens_of(qwen, "The fox ", " dog.\n") == [0, *expected]
    assert await tokens_of(qwen, "The fox ", " dog.\n", add_special_tokens=False) == expected
    assert await tokens_of(qwen) == [0, before, after, middle]


async def test_other_files_come_first(qwen):
    *_, repository, file = ids(qwen, QWEN)
    prompt = await tokens_of(qwen, "a", "b", [("x.py", "one"), ("y.py", "two\n")])
    assert [token for token in prompt if token in (repository, file)] == [repository, file, file, file]
    assert text(qwen, prompt) == (
        "<s><|repo_name|>project\n<|file_sep|>x.py\none\n<|file_sep|>y.py\ntwo\n"
        "<|file_sep|>file\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    )


async def test_other_files_without_tokens_for_them(byte_level, tmp_path):
    model = with_tokens(byte_level, QWEN[:3], tmp_path)
    prompt = await tokens_of(model, "a", "b", [("x.py", "one")])
    assert text(model, prompt) == "<s>x.py\none\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"


async def test_what_stands_after_the_gap_first(byte_level, tmp_path):
    model = with_tokens(byte_level, CODESTRAL, tmp_path, special=True)
    assert text(model, await tokens_of(model, "fox", "dog")) == "<s>[SUFFIX]dog[PREFIX]fox"


async def test_sentencepiece_has_no_space_behind_the_gap(sentencepiece, tmp_path):
    model = with_tokens(sentencepiece, CODE_LLAMA, tmp_path, special=True)
    before, after, middle, end = ids(model, CODE_LLAMA)
    fox = model.encode("fox", special=False)
    prompt = await tokens_of(model, "fox", "fox")
    assert [1, before, *fox, after] == prompt[: len(fox) + 3]
    behind = prompt[len(fox) + 3 : -1]
    assert ("".join(map(model.tokenizer.id_to_token, behind)), prompt[-1]) == ("fox", middle)
    assert end in stop_tokens(model, TextRequest(infill=Infill()))


@given(
    st.lists(st.sampled_from([*QWEN, "<s>", "</s>", "<", "|fim_", "fox", " ", "\n", "❄"]), max_size=8),
    st.lists(st.sampled_from([*QWEN, "<s>", "</s>", "e", " ", "\n"]), max_size=8),
)
async def test_a_text_that_spells_a_mark_stays_a_text(qwen, before, after):
    marks = ids(qwen, [*QWEN, "<s>", "</s>"])
    first, second, middle, *_ = marks
    written, behind = "".join(before), "".join(after)
    prompt = await tokens_of(qwen, written, behind, add_special_tokens=False)
    assert [token for token in prompt if token in marks] == [first, second, middle]
    place = prompt.index(second)
    assert (text(qwen, prompt[1:place]), text(qwen, prompt[place + 1 : -1])) == (written, behind)


async def test_a_long_text_is_encoded_alike(qwen):
    long = "The fox <|fim_middle|>. " * (SHORT // 10)
    prompt = await tokens_of(qwen, long, "b")
    place = prompt.index(ids(qwen, QWEN)[1])
    assert text(qwen, prompt[2:place]) == long


def test_tokens_that_end_it(qwen):
    infill = TextRequest(infill=Infill())
    assert stop_tokens(qwen, infill) == sorted([1, *ids(qwen, QWEN)])
    assert stop_tokens(qwen, TextRequest(text="a")) == [1]
    infill.ignore_eos = True
    assert stop_tokens(qwen, infill) == []


async def test_what_is_refused(qwen, byte_level):
    with pytest.raises(InvalidRequestError, match="no tokens to fill in the middle") as refused:
        await tokens_of(byte_level, "a", "b")
    assert refused.value.param == "suffix"
    with pytest.raises(InvalidRequestError, match="cannot be cut") as refused:
        await tokens_of(qwen, "a", "b", truncate_prompt_tokens=2)
    assert refused.value.param == "truncate_prompt_tokens"
