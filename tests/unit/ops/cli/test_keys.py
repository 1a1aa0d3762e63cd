"""`quire keys` as an operator uses it."""

import json
import os
import secrets
from pathlib import Path

import pytest
import redis

from ops.cli.main import main
from ops.launcher import deployments
from ops.launcher.deployments import Deployment
from ops.launcher.kept_keys import kept
from ops.runtime.api_keys import digest_of
from ops.runtime.errors import LaunchError
from ops.runtime.identity import Identity


@pytest.fixture(autouse=True)
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("QUIRE_REDIS_URL", redis_url)
    prefix = f"cli-{secrets.token_hex(4)}:"
    monkeypatch.setenv("QUIRE_STREAM_PREFIX", prefix)
    return prefix


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_add_list_revoke(capsys: pytest.CaptureFixture[str], redis_url: str, prefix: str) -> None:
    assert main(["keys", "add", "laptop", "--tenant", "north", "--days", "30"]) == 0
    (secret,) = said(capsys)
    assert main(["keys", "add", "laptop", "--limits", "concurrency=4", "priority=0:5"]) == 0
    (other,) = said(capsys)
    assert main(["keys", "add", "phone", "--rights", "text", "inside"]) == 0
    said(capsys)
    assert main(["keys", "list"]) == 0
    head, *rows = said(capsys)
    assert head.split() == ["ID", "NAME", "TENANT", "CREATED", "EXPIRES", "RIGHTS", "LIMITS"]
    assert [row.split()[1:3] for row in rows] == [
        ["laptop", "laptop"],
        ["laptop", "north"],
        ["phone", "phone"],
    ]
    assert rows[0].startswith(digest_of(other)[:12])
    assert rows[0].endswith("concurrency=4 priority=0:5")
    assert "never" in rows[0]
    assert "never" not in rows[1]
    assert rows[1].split()[-2:] == ["-", "-"]
    assert rows[2].split()[-3:] == ["inside", "text", "-"]
    assert secret not in "".join(rows)
    assert main(["keys", "revoke", digest_of(secret)[:12], "phone"]) == 0
    assert len(said(capsys)) == 2
    with redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=60) as client:
        assert set(client.hkeys(f"{prefix}keys")) == {"version", digest_of(other)}


def test_a_key_that_ends_beyond_the_calendar_is_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.cli.keys.MOST_DAYS", 1e30)
    assert main(["keys", "add", "old", "--days", "1e30"]) == 0
    assert main(["keys", "list"]) == 0
    assert "8.64e+34" in said(capsys)[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "north", "--limits", "speed=3"], "--limits: there is no limit 'speed'"),
        (["add", "north", "--days", "0"], "--days"),
        (["add", "north", "--days", "nan"], "--days"),
        (["add", "north", "--days", "1e30"], "--days"),
        (["revoke", "nobody"], "there is no key 'nobody'"),
        (["--port", "1", "list"], "nothing runs here"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("arguments", [[], ["add"], ["add", "a b"], ["add", "x", "--tenant", "a:b"], ["fly"]])
def test_wrong_arguments_are_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["keys", *arguments])
    assert ended.value.code == 2


def test_without_redis_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIRE_REDIS_URL", "redis://127.0.0.1:1/0")
    assert main(["keys", "list"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    monkeypatch.delenv("QUIRE_REDIS_URL")
    assert main(["keys", "list"]) == 2


def test_keys_of_an_embedded_redis_are_kept_on_disk(
    capsys: pytest.CaptureFixture[str], redis_url: str, prefix: str, tmp_path: Path
) -> None:
    (tmp_path / "quire" / "8123").mkdir(parents=True)
    me = Identity.of(os.getpid())
    deployments.write(
        Deployment(
            url="http://127.0.0.1:8123",
            port=8123,
            model="m",
            redis_url=redis_url,
            stream_prefix=prefix,
            launcher=me,
            processes={"redis": me},
        )
    )
    for arguments in (["list"], ["list", "--port", "8123"], ["--port", "8123", "list"]):
        assert main(["keys", *arguments]) == 0
        assert len(said(capsys)) == 1
    assert main(["keys", "list", "--port", "8124"]) == main(["keys", "--port", "8124", "list"]) == 2
    capsys.readouterr()
    assert kept(8123) is None, "it has never had a key, and stays open"
    assert main(["keys", "add", "north"]) == 0
    (secret,) = said(capsys)
    path = tmp_path / "quire" / "8123" / "keys.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret not in path.read_text()
    records = kept(8123)
    assert records is not None
    assert records.keys() == {digest_of(secret)}
    assert json.loads(records[digest_of(secret)])["tenant"] == "north"
    assert main(["keys", "revoke", "north"]) == 0
    assert kept(8123) == {}, "and the deployment stays closed"
    path.write_text("[")
    with pytest.raises(LaunchError, match="cannot be read"):
        kept(8123)
