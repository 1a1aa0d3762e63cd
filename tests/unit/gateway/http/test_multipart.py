"""A form with a file is read alike, wherever the pieces end in which it comes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from gateway.errors import BadRequest, TooLarge
from gateway.http.multipart import MAX_FIELD_BYTES, MAX_FIELDS, Form

DATA = b'{"a": 1}\r\n--bound\r\n\r\n--boundary-\n'
MOST = 2**20
TYPE = "multipart/form-data; boundary=boundary"


def form(*parts: tuple[str, bytes]) -> bytes:
    """A form with these parts, each a disposition and what is in it."""
    head = b'--boundary\r\nContent-Disposition: form-data; name="%s\r\n\r\n%s\r\n'
    return b"".join(head % (name.encode(), data) for name, data in parts) + b"--boundary--\r\n"


FILE = ('file"; filename="in.jsonl"', DATA)
WHOLE = form(('purpose"', b"batch"), FILE, ('expires_after[seconds]"', b"3600"))


def request_of(pieces: list[bytes], media_type: str = TYPE) -> Request:
    left = iter(pieces)

    async def receive() -> dict[str, object]:
        piece = next(left, None)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    headers = [(b"content-type", media_type.encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


async def read(pieces: list[bytes]) -> tuple[bytes, Form]:
    found = Form("file", MOST)
    return b"".join([piece async for piece in found.read(request_of(pieces))]), found


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=8))
async def test_it_is_read_alike_in_any_pieces(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(WHOLE)]
    data, found = await read([WHOLE[start:end] for start, end in pairwise(ends)])
    assert (data, found.filename) == (DATA, "in.jsonl")
    assert found.fields == {"purpose": "batch", "expires_after[seconds]": "3600"}


@pytest.mark.parametrize(
    "body",
    [
        WHOLE[:-30],
        form(('purpose"', b"batch")),
        form(FILE, FILE),
        form(FILE, ('x"', b"x" * (MAX_FIELD_BYTES + 1))),
        form(FILE, *[(f'x{number}"', b"x") for number in range(MAX_FIELDS + 1)]),
        form(FILE, *[('x"', b"x")] * (MAX_FIELDS + 1)),
    ],
)
async def test_what_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        await read([body])


@pytest.mark.parametrize("at", [0, len(WHOLE)])
async def test_what_is_beside_the_file_has_an_end(at: int) -> None:
    """Whoever sends something before the first part or behind the last one."""
    rest = [b"\r\n" * 2**15] * 3
    with pytest.raises(TooLarge, match="beside its file"):
        await read([WHOLE[:at], *rest, WHOLE[at:]])
    assert (await read([WHOLE[:at], *rest[:1], WHOLE[at:]]))[0] == DATA


async def test_the_file_has_a_bound() -> None:
    whole, beyond = (form(('file"; filename="f"', bytes(size))) for size in (MOST, MOST + 1))
    assert len((await read([whole]))[0]) == MOST
    with pytest.raises(TooLarge, match=f"larger than {MOST}"):
        await read([beyond])


async def test_a_boundary_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadRequest, match="Boundary"):
        async for _ in Form("file", MOST).read(request_of([WHOLE], f"{TYPE}{'y' * 5000}")):
            pass
