"""/v1/files, with the openai client: what is uploaded comes back, to its tenant alone."""

import time

import openai
import pytest

from gateway.api.batches.schema import DeletedFile, FileList, FileObject
from gateway.api.common.listing import USUAL
from gateway.app import Options
from gateway.upstream.batch_store import BatchStore
from gateway.upstream.file_store import PIECE_BYTES, FileStore
from gateway.upstream.job_queue import JobQueue
from tests.unit.gateway.conftest import app_of, serving, stores_of

MOST = 3 * PIECE_BYTES
DATA = bytes(range(256)) * (2 * PIECE_BYTES // 256) + b"the end"


@pytest.fixture
async def clients(backend, keys_of, line, prefix):
    files = FileStore(line, prefix, seconds=7200, tenant_bytes=2 * MOST, all_bytes=3 * MOST)
    stores = stores_of(
        batches=BatchStore(line, prefix, files), batch_queue=JobQueue(line, prefix, "batch", 1)
    )
    app = app_of(
        backend, keys_of({"sk-a": "a", "sk-b": "b"}), stores=stores, options=Options(file_bytes=MOST)
    )
    async with serving(app) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        made = [openai.AsyncOpenAI(base_url=url, api_key=f"sk-{one}", max_retries=0) for one in "ab"]
        yield made
        for one in made:
            await one.close()


async def upload(client, data=DATA, **fields):
    return await client.files.create(file=("in.jsonl", data), **{"purpose": "batch"} | fields)


async def test_a_file_comes_back_as_it_was(clients):
    client, _ = clients
    made = await upload(client)
    FileObject.model_validate(made.to_dict(), strict=True)
    assert (made.bytes, made.filename, made.purpose) == (len(DATA), "in.jsonl", "batch")
    assert made.expires_at - made.created_at == 7200
    assert await client.files.retrieve(made.id) == made
    assert (await client.files.content(made.id)).content == DATA
    gone = await client.files.delete(made.id)
    DeletedFile.model_validate(gone.to_dict(), strict=True)
    with pytest.raises(openai.NotFoundError, match=made.id):
        await client.files.content(made.id)


async def test_a_part_of_a_file_that_is_deleted_meanwhile_is_not_taken_for_the_whole(
    clients, monkeypatch, caplog
):
    client, _ = clients
    pieces = FileStore.pieces

    async def deleting(store, tenant, file_id):
        async for piece in pieces(store, tenant, file_id):
            yield piece
            await store.delete(tenant, file_id)

    made = await upload(client)
    monkeypatch.setattr(FileStore, "pieces", deleting)
    with pytest.raises(openai.APIConnectionError):
        await client.files.content(made.id)
    assert "The file was deleted" in caplog.text
    assert "Traceback" not in caplog.text


async def test_what_is_written_to_a_file_while_it_is_read_is_left_out(clients, monkeypatch):
    client, _ = clients
    pieces = FileStore.pieces

    async def writing(store, tenant, file_id):
        await store.append(tenant, file_id, [b"more"])
        async for piece in pieces(store, tenant, file_id):
            yield piece

    made = await upload(client)
    monkeypatch.setattr(FileStore, "pieces", writing)
    assert (await client.files.content(made.id)).content == DATA
    monkeypatch.undo()
    assert (await client.files.content(made.id)).content == DATA + b"more"


async def test_files_are_listed_page_by_page(clients):
    client, other = clients
    made = [(await upload(client, b"x")).id for _ in range(5)]
    await upload(other, b"y")
    page = await client.files.list(limit=2)
    assert [one.id for one in page.data] == made[:2:-1]
    assert [one.id async for one in page] == made[::-1]
    assert [one.id async for one in client.files.list(order="asc", limit=3)] == made
    assert [one.id async for one in client.files.list(purpose="batch", limit=2)] == made[::-1]
    assert [one.id async for one in client.files.list(purpose="batch_output")] == []
    assert [one.id async for one in client.files.list(purpose="other")] == []
    FileList.model_validate(page.to_dict(), strict=True)


async def test_files_are_deleted_while_they_are_listed(clients):
    client, _ = clients
    for _ in range(USUAL + 2):
        await upload(client, b"x")
    deleted = [(await client.files.delete(one.id)).id async for one in client.files.list()]
    assert len(deleted) == USUAL + 2
    assert (await client.files.list()).data == []


async def test_a_list_drops_what_has_run_out(clients, line, prefix):
    client, _ = clients
    store = FileStore(line, prefix, seconds=1, tenant_bytes=MOST, all_bytes=MOST)
    file = {"id": f"file-{1:032x}", "expires_at": int(time.time()) - 1, "purpose": "batch"}
    await store.put("a", file)
    await line.execute(("ZADD", f"{prefix}files:ends", 0, f"{file['id']}:a"))
    assert [one.id async for one in client.files.list()] == []
    (left,) = await line.execute(("KEYS", f"{prefix}files:*"))
    assert left == []


async def test_another_tenant_finds_nothing(clients):
    client, other = clients
    made = await upload(client)
    for asking in (other.files.retrieve, other.files.content, other.files.delete):
        with pytest.raises(openai.NotFoundError):
            await asking(made.id)


async def test_how_long_a_file_is_kept(clients):
    client, _ = clients
    made = await upload(client, expires_after={"anchor": "created_at", "seconds": 3600})
    assert made.expires_at - made.created_at == 3600
    with pytest.raises(openai.BadRequestError) as refused:
        await upload(client, expires_after={"anchor": "created_at", "seconds": 1})
    assert refused.value.param == "expires_after"


async def test_what_is_refused_leaves_nothing(clients, line, prefix):
    client, _ = clients
    with pytest.raises(openai.BadRequestError) as refused:
        await upload(client, purpose="assistants")
    assert refused.value.param == "purpose"
    with pytest.raises(openai.BadRequestError, match="empty"):
        await upload(client, b"")
    with pytest.raises(openai.APIStatusError) as refused:
        await upload(client, bytes(MOST + 1))
    assert refused.value.status_code == 413
    (left,) = await line.execute(("KEYS", f"{prefix}files:*"))
    assert left == []


async def test_a_tenant_has_so_much_room(clients):
    client, other = clients
    made = await upload(client, bytes(MOST))
    await upload(client, bytes(MOST - 4096))
    with pytest.raises(openai.RateLimitError, match="room"):
        await upload(client, bytes(8192))
    await upload(other, bytes(4096))
    await client.files.delete(made.id)
    await upload(client, bytes(8192))


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{}", {"Content-Type": "application/json"}, 415),
        (b"--x\r\n\r\n--y", {"Content-Type": "multipart/form-data; boundary=x"}, 400),
        (b"--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}, 400),
        (b"", {"Content-Type": "multipart/form-data; boundary=x", "Content-Encoding": "gzip"}, 415),
        (b"--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x", "Content-Encoding": ""}, 400),
    ],
)
async def test_what_is_no_form(clients, content, headers, status):
    client, _ = clients
    answer = await client._client.post(
        f"{client.base_url}files", content=content, headers={"Authorization": "Bearer sk-a"} | headers
    )
    assert answer.status_code == status, answer.text
