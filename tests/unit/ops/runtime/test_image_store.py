"""Images of requests in Redis."""

import pytest

from ops.runtime.image_store import ImageGone, ImageStore, image_file
from proto.rpc import BusAway
from proto.rpc.line import Line

IMAGE = bytes(range(256)) * 100


@pytest.fixture
def store(line: Line, prefix: str) -> ImageStore:
    return ImageStore(line, prefix)


async def test_what_is_put_is_there_until_it_is_dropped(store: ImageStore) -> None:
    files = [image_file(name, IMAGE + name.encode()) for name in "abc"]
    for file in files:
        await store.put(file.name, IMAGE + file.name.encode(), 60)
    assert [await store.get(file) for file in files] == [IMAGE + each for each in (b"a", b"b", b"c")]
    await store.drop(["a", "c", "never put"])
    assert await store.get(files[1]) == IMAGE + b"b"
    for file in (files[0], files[2]):
        with pytest.raises(ImageGone):
            await store.get(file)


async def test_dropping_nothing_asks_nobody() -> None:
    await ImageStore(Line("redis://127.0.0.1:1"), "x:").drop([])


async def test_another_image_under_the_name_is_none(store: ImageStore) -> None:
    await store.put("a", IMAGE, 60)
    with pytest.raises(ImageGone, match="not in Redis any more"):
        await store.get(image_file("a", IMAGE + b"?"))


async def test_redis_forgets_it_in_time(store: ImageStore, line: Line, prefix: str) -> None:
    await store.put("a", IMAGE, 60)
    (left,) = await line.execute(("PTTL", f"{prefix}images:a"))
    assert 0 < left <= 60_000


async def test_deployments_have_their_own(store: ImageStore, line: Line) -> None:
    await store.put("a", IMAGE, 60)
    with pytest.raises(ImageGone):
        await ImageStore(line, "another:").get(image_file("a", IMAGE))


async def test_without_redis() -> None:
    with pytest.raises(BusAway):
        await ImageStore(Line("redis://127.0.0.1:1"), "x:").get(image_file("a", IMAGE))
