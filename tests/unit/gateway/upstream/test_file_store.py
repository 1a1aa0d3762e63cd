"""Files in Redis: pieces, lines, room, and what is left when they have run out."""

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.errors import Overloaded, Unavailable
from gateway.upstream import file_store
from gateway.upstream.file_store import UPLOAD_SECONDS, FileStore, in_pieces
from gateway.upstream.listed import IDS_AT_ONCE
from proto.rpc.line import Line


def about(number: int, seconds: int = 600) -> dict[str, object]:
    id_, expires_at = f"file-{number:032x}", int(time.time()) + seconds
    return {"id": id_, "expires_at": expires_at, "purpose": "batch"}


async def listed(store: FileStore, tenant: str, purpose: str | None = None) -> list[str]:
    return [one async for one in store.ids(tenant, purpose, None, False)]


@pytest.fixture
def store(line: Line, prefix: str) -> FileStore:
    return FileStore(line, prefix, seconds=600, tenant_bytes=8192, all_bytes=12_000)


async def test_lines_are_cut_wherever_pieces_end(store: FileStore) -> None:
    text = b"first\n\nsecond line\n  \nthird"
    for size in (1, 2, 5, 7, 100):
        file = about(size)
        await store.put("a", file)
        await store.append("a", str(file["id"]), [text[at : at + size] for at in range(0, len(text), size)])
        lines = [line async for _, line in store.lines("a", str(file["id"]))]
        assert lines == [b"first", b"second line", b"third"]
        found = await store.get("a", str(file["id"]))
        assert found is not None
        assert found["bytes"] == len(text)


def test_pieces_are_the_data() -> None:
    data = bytes(200_000)
    pieces = in_pieces(data)
    assert b"".join(pieces) == data
    assert in_pieces(b"") == []


async def test_a_piece_and_what_redis_adds_fit_into_64_kib(line: Line, prefix: str) -> None:
    """Above that Redis's allocator would take 80."""
    (piece, *_) = in_pieces(bytes(200_000))
    await line.execute(("RPUSH", f"{prefix}piece", piece))
    (used,) = await line.execute(("MEMORY", "USAGE", f"{prefix}piece"))
    assert 0.99 * 2**16 < used <= 2**16


async def test_there_is_room_for_so_much(store: FileStore) -> None:
    for tenant, number in (("a", 1), ("b", 2)):
        await store.put(tenant, about(number))
    await store.append("a", str(about(1)["id"]), [bytes(6000)])
    with pytest.raises(Overloaded):
        await store.append("a", str(about(1)["id"]), [bytes(1500)])
    with pytest.raises(Overloaded):
        await store.append("b", str(about(2)["id"]), [bytes(4500)])
    assert await store.delete("a", str(about(1)["id"]))
    await store.append("b", str(about(2)["id"]), [bytes(4500)])


@pytest.mark.parametrize("filename", ["a.jsonl", "é" * 255])
async def test_what_files_take_in_redis_is_what_is_counted(line: Line, prefix: str, filename: str) -> None:
    store = FileStore(line, prefix, seconds=600, tenant_bytes=2**24, all_bytes=2**24)
    for number in range(200):
        await store.put("tenant", about(number), listed=False)
        await store.append("tenant", str(about(number)["id"]), [bytes(100)] * (number % 3))
        await store.put("tenant", about(number) | {"filename": filename})
    (names,) = await line.execute(("KEYS", f"{prefix}*"))
    used = await line.execute(*(("MEMORY", "USAGE", name, "SAMPLES", "0") for name in names))
    (counted,) = await line.execute(("HGET", f"{prefix}files:used", ""))
    assert int(counted) / 2 < sum(used) <= int(counted)
    for number in range(200):
        await store.delete("tenant", str(about(number)["id"]))
    (left,) = await line.execute(("KEYS", f"{prefix}*"))
    assert left == []


async def test_nothing_is_left_of_what_has_run_out(store: FileStore, line: Line, prefix: str) -> None:
    await store.put("a", about(1))
    await store.append("a", str(about(1)["id"]), [b"x"])
    await line.execute(("ZADD", f"{prefix}files:ends", 1, f"{about(1)['id']}:a"))
    await store.put("b:c", about(2))
    assert await listed(store, "a") == []
    assert await store.get("a", str(about(1)["id"])) is None
    assert await listed(store, "b:c") == [about(2)["id"]]
    assert await store.delete("b:c", str(about(2)["id"]))
    assert not await store.delete("b:c", str(about(2)["id"]))
    (left,) = await line.execute(("KEYS", f"{prefix}*"))
    assert left == []


async def test_files_are_listed_by_their_purpose(store: FileStore, line: Line, prefix: str) -> None:
    made = [about(number) | {"purpose": ("batch", "batch_output")[number % 2]} for number in range(5)]
    for file in made:
        await store.put("a", file)
    await store.put("a", about(5), listed=False)
    ids = [str(file["id"]) for file in made]
    assert await listed(store, "a") == ids
    assert await listed(store, "a", "batch") == ids[::2]
    assert await listed(store, "a", "batch_output") == ids[1::2]
    assert await listed(store, "a", "other") == []
    behind = [one async for one in store.ids("a", "batch", ids[1], newest_first=False)]
    assert behind == [ids[2], ids[4]], "behind a file that has another purpose"
    for file in (*made, about(5)):
        await store.delete("a", str(file["id"]))
    (left,) = await line.execute(("KEYS", f"{prefix}*"))
    assert left == []


async def test_a_list_reads_many_at_once_and_deletes_what_has_run_out(line: Line, prefix: str) -> None:
    store = FileStore(line, prefix, seconds=600, tenant_bytes=2**24, all_bytes=2**24)
    files, held = [about(number) for number in range(2 * IDS_AT_ONCE + 3)], list[int]()
    for file in files:
        await store.put("a", file)
    await line.execute(("ZADD", f"{prefix}files:ends", 0, f"{files.pop(1)['id']}:a"))
    execute, asked = line.execute, list[str]()

    async def noted(*commands: Any, **named: Any) -> Any:
        asked.extend(command[0] for command in commands)
        return await execute(*commands, **named)

    line.execute = noted  # type: ignore[method-assign]
    found = [one async for one in store.files("a", "batch", None, False, held.append)]
    assert found == [file | {"bytes": 0} for file in files]
    assert sum(held) == sum(len(json.dumps(file, separators=(",", ":"))) for file in files)
    assert asked == ["ZRANGE", "EVAL", "ZRANGE", "EVAL", "ZRANGE", "EVAL"]
    assert await listed(store, "a") == [file["id"] for file in files]


async def test_gateways_may_have_other_clocks(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put("a", about(1))
    monkeypatch.setattr(file_store, "time", SimpleNamespace(time=lambda: time.time() + 3600))
    assert await store.get("a", str(about(1)["id"])), "it has not run out by Redis's clock"


async def test_what_has_run_out_is_not_found(store: FileStore, line: Line, prefix: str) -> None:
    await store.put("a", about(1))
    await line.execute(("ZADD", f"{prefix}files:ends", 1, f"{about(1)['id']}:a"))
    assert await store.get("a", str(about(1)["id"])) is None
    assert await store.get("a", "nonsense") is None
    assert not await store.delete("a", "nonsense")


async def test_without_redis() -> None:
    store = FileStore(Line("redis://127.0.0.1:1"), "p:", seconds=1, tenant_bytes=1, all_bytes=1)
    with pytest.raises(Unavailable):
        await listed(store, "a")


async def test_what_still_comes_is_kept(store: FileStore, line: Line, prefix: str) -> None:
    """An upload of hours is not dropped in the middle; one that was, is not taken for whole."""
    file_id = str(about(1)["id"])
    await store.put("a", about(1, seconds=1), listed=False)
    await store.append("a", file_id, [b"x"])
    (ends,) = await line.execute(("ZSCORE", f"{prefix}files:ends", f"{file_id}:a"))
    assert int(ends) >= time.time() + UPLOAD_SECONDS - 60
    await store.delete("a", file_id)
    with pytest.raises(Unavailable, match="too late"):
        await store.append("a", file_id, [b"y"])
