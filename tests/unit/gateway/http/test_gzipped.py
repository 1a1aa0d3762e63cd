"""Compressed bodies of requests and answers."""

import gzip
import json
import random
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.errors import BadRequest, TooLarge
from gateway.http.gzipped import SMALLEST, STEP, accepts_gzip, inflated

TEXTS = {
    "nothing": b"",
    "short": b"{}",
    "repeated": b"fox " * STEP,
    "random": random.Random(1).randbytes(STEP * 3),
}
MEMBER = gzip.compress(b"{}")


async def cut(body: bytes, size: int) -> AsyncIterator[bytes]:
    for place in range(0, len(body), size):
        yield body[place : place + size]
    yield b""


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("size", [7, 2**12, 2**20])
async def test_a_body_is_what_was_compressed_in_bounded_steps(text, size):
    steps = [step async for step in inflated(cut(gzip.compress(text), size), 2**22)]
    assert b"".join(steps) == text
    assert all(0 < len(step) <= STEP for step in steps)


async def test_a_bomb_is_decompressed_no_further_than_it_is_read():
    read = inflated(cut(gzip.compress(b" " * 2**26), 2**20), 2**22)
    assert len(await anext(read)) == STEP
    await read.aclose()


async def test_many_compressed_bytes_that_become_nothing():
    empty_blocks = b"\0\0\0\xff\xff" * 10_000
    head = gzip.compress(b"")[:10]
    with pytest.raises(TooLarge):
        [step async for step in inflated(cut(head + empty_blocks, 1000), 40_000)]


@pytest.mark.parametrize(
    "body", [b"{}", MEMBER[:-3], MEMBER + b"x", MEMBER[:2]], ids=["plain", "cut", "more", "head"]
)
@pytest.mark.parametrize("size", [1, 1000])
async def test_what_is_not_one_member_is_refused(body, size):
    with pytest.raises(BadRequest):
        [step async for step in inflated(cut(body, size), 2**20)]


@pytest.mark.parametrize(
    ("values", "accepted"),
    [
        ([], False),
        (["identity"], False),
        (["br, gzip"], True),
        (["br", "GZIP;q=0.5"], True),
        (["gzip;q=0"], False),
        (["gzip;q=none"], False),
        (["gzipped"], False),
    ],
)
def test_who_accepts_gzip(values, accepted):
    assert accepts_gzip(values) == accepted


async def test_long_answers_are_compressed_and_short_ones_are_not(gateway):
    embed = {"model": "m", "input": ["a fox"] * 100}
    plain = await gateway.http.post("/v1/embeddings", json=embed, headers={"Accept-Encoding": "identity"})
    asked = await gateway.http.post("/v1/embeddings", json=embed)
    assert "content-encoding" not in plain.headers
    assert (asked.headers["content-encoding"], asked.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert int(asked.headers["content-length"]) < SMALLEST < len(plain.content)
    assert asked.content == plain.content
    short = await gateway.http.get("/v1/models")
    assert "content-encoding" not in short.headers


async def test_a_large_answer_is_compressed_in_a_thread(gateway):
    embed = {"model": "m", "input": ["a fox"] * 2000}
    asked = await gateway.http.post("/v1/embeddings", json=embed)
    assert len(asked.content) > STEP > int(asked.headers["content-length"])
    assert len(asked.json()["data"]) == 2000


async def test_a_stream_is_not_compressed(gateway):
    ask = {"model": "m", "prompt": "A", "stream": True}
    answer = await gateway.http.post("/v1/completions", json=ask, headers={"Accept-Encoding": "gzip"})
    assert answer.status_code == 200
    assert "content-encoding" not in answer.headers
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_request_may_be_compressed(gateway):
    body = gzip.compress(json.dumps({"model": "m", "prompt": "fox " * STEP}).encode())
    answer = await gateway.http.post("/v1/completions", content=body, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 200, answer.text
    (request,) = gateway.tokenizer.requests
    assert request.text == "fox " * STEP


async def test_a_head_has_the_length_of_the_compressed_answer(gateway):
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as http:
        asked, got = await http.head("/"), await http.get("/")
    assert asked.headers["content-length"] == got.headers["content-length"]
    assert got.headers["content-encoding"] == "gzip"
