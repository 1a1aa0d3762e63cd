"""What the users of Redis may do, tried on a server."""

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

import gateway
from ops.launcher import acl
from ops.launcher.acl import CHAIN, OPERATOR, ROLES, Credentials, rules
from ops.launcher.redis_server import RedisServer

ROOT = Path(__file__).parents[4]
PREFIX = "quire:"
OURS = Credentials()

Try = tuple[object, ...]


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, "redis.Redis"]]:
    """A connection of each role."""
    with RedisServer(users=OURS.acl_file(PREFIX)) as server:
        clients = {
            role: redis.Redis.from_url(OURS.url(role, server.address), socket_timeout=60) for role in ROLES
        }
        yield clients
        for client in clients.values():
            client.close()


def permitted(client: "redis.Redis", attempt: Try) -> bool:
    """Whether the server lets a user do something; what comes of it does not count."""
    try:
        client.execute_command(*attempt)
    except NoPermissionError:
        return False
    except redis.ResponseError:
        return True
    return True


def xadd(stream: str) -> Try:
    return "XADD", f"{PREFIX}{stream}", "*", "e", "x"


@pytest.mark.parametrize("role", CHAIN)
@pytest.mark.parametrize("service", CHAIN)
def test_only_neighbours_write_to_an_inbox_and_only_its_service_reads_it(
    users: dict[str, "redis.Redis"], role: str, service: str
) -> None:
    key = f"{PREFIX}inbox:{service}-1"
    near = abs(CHAIN.index(role) - CHAIN.index(service)) == 1 or {role, service} == {"gateway", "scheduler"}
    assert permitted(users[role], xadd(f"inbox:{service}-1")) == (near or role == service)
    for reading in (("XREAD", "COUNT", 1, "STREAMS", key, 0), ("XREVRANGE", key, "+", "-")):
        assert permitted(users[role], reading) == (role == service)
    # Who may write to a key may delete it: rights do not tell the one from the other.
    assert permitted(users[role], ("DEL", key)) == (role == service or near)


@pytest.mark.parametrize("role", CHAIN)
@pytest.mark.parametrize("service", CHAIN[1:])
def test_calls_go_from_one_service_to_the_next(
    users: dict[str, "redis.Redis"], role: str, service: str
) -> None:
    door = f"calls:{service.capitalize()}:model"
    calls = CHAIN.index(role) + 1 == CHAIN.index(service)
    assert permitted(users[role], xadd(door)) == (calls or role == service)
    reading = ("XREADGROUP", "GROUP", "replicas", "me", "STREAMS", f"{PREFIX}{door}", ">")
    assert permitted(users[role], reading) == (role == service)
    # A caller may look whether its call is still there.
    looking = ("XRANGE", f"{PREFIX}{door}", "1-1", "1-1")
    assert permitted(users[role], looking) == (calls or role == service)


@pytest.mark.parametrize("role", CHAIN)
def test_gateways_look_into_schedulers(users: dict[str, "redis.Redis"], role: str) -> None:
    door = "calls:Inside:model"
    assert permitted(users[role], xadd(door)) == (role in ("gateway", "scheduler"))
    reading = ("XREADGROUP", "GROUP", "replicas", "me", "STREAMS", f"{PREFIX}{door}", ">")
    assert permitted(users[role], reading) == (role == "scheduler")
    looking = ("XRANGE", f"{PREFIX}{door}", "1-1", "1-1")
    assert permitted(users[role], looking) == (role in ("gateway", "scheduler"))


@pytest.mark.parametrize("role", CHAIN)
@pytest.mark.parametrize("service", CHAIN)
def test_leases_are_seen_by_all_and_written_by_their_service(
    users: dict[str, "redis.Redis"], role: str, service: str
) -> None:
    key = f"{PREFIX}alive:{service}-1"
    assert permitted(users[role], ("MGET", key, f"{PREFIX}alive:other-1"))
    for writing in (("SET", key, "x"), ("DEL", key), ("PEXPIRE", key, 1)):
        assert permitted(users[role], writing) == (role == service)
    assert permitted(users[role], ("GET", f"{PREFIX}sent:{service}-1")) == (role == service)


@pytest.mark.parametrize("role", ROLES)
def test_gateways_read_the_api_keys_and_only_people_write_them(
    users: dict[str, "redis.Redis"], role: str
) -> None:
    keys, counts = f"{PREFIX}keys", f"{PREFIX}limits:somebody"
    assert permitted(users[role], ("HGETALL", keys)) == (role in ("gateway", OPERATOR))
    assert permitted(users[role], ("HSET", keys, "x", "y")) == (role == OPERATOR)
    assert permitted(users[role], ("HDEL", keys, "x")) == (role == OPERATOR)
    assert permitted(users[role], ("HSET", counts, "requests", "1")) == (role in ("gateway", OPERATOR))


@pytest.mark.parametrize("role", ROLES)
def test_a_process_leaves_its_metrics_and_the_gateway_reads_all(
    users: dict[str, "redis.Redis"], role: str
) -> None:
    for service in CHAIN:
        key = f"{PREFIX}metrics:{service}-1"
        assert permitted(users[role], ("SET", key, "x", "EX", 20)) == (role in (service, OPERATOR))
        assert permitted(users[role], ("MGET", key)) == (role in ("gateway", OPERATOR))


@pytest.mark.parametrize("role", ROLES)
def test_tokenizers_share_verdicts_on_grammars(users: dict[str, "redis.Redis"], role: str) -> None:
    for command in (("SET", f"{PREFIX}grammars:7", "x", "PX", 20), ("GET", f"{PREFIX}grammars:7")):
        assert permitted(users[role], command) == (role in ("tokenizer", OPERATOR))


@pytest.mark.parametrize("role", ROLES)
def test_gateways_keep_images_which_tokenizers_and_workers_read(
    users: dict[str, "redis.Redis"], role: str
) -> None:
    key = f"{PREFIX}images:1"
    for writing in (("SET", key, "x", "EX", 20), ("DEL", key)):
        assert permitted(users[role], writing) == (role in ("gateway", OPERATOR))
    assert permitted(users[role], ("GET", key)) == (role in ("tokenizer", "worker", OPERATOR))


@pytest.mark.parametrize("role", ROLES)
def test_gateways_keep_responses(users: dict[str, "redis.Redis"], role: str) -> None:
    base = f"{PREFIX}responses:"
    for command in (
        ("SET", f"{base}of:a:resp_1", "x", "EX", 20),
        ("ZADD", f"{base}all", 1, "1:resp_1:a"),
        ("ZRANGE", f"{base}all", 0, 0),
        ("ZREM", f"{base}all", "1:resp_1:a"),
        ("HSET", f"{base}bytes", "all", 1),
        ("XADD", f"{base}events:a:resp_1", "1-0", "e", "x"),
        ("XRANGE", f"{base}events:a:resp_1", "-", "+"),
        ("SADD", f"{PREFIX}jobs:response:of:a", "resp_1"),
        ("HINCRBY", f"{PREFIX}jobs:response:job:resp_1", "takes", 1),
        ("RPUSH", f"{PREFIX}files:data:a:file-1", "x"),
        ("SETBIT", f"{PREFIX}batches:done:a:batch_1", 0, 1),
        ("XREAD", "STREAMS", f"{PREFIX}claims:answer:a:1:2", "0"),
        ("HSET", f"{PREFIX}claims:of:a:1", "owner", "2"),
    ):
        assert permitted(users[role], command) == (role in ("gateway", OPERATOR))


FORBIDDEN: list[Try] = [
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "dir", "/tmp"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("MODULE", "LIST"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "gateway", "allkeys"),
    ("SHUTDOWN", "NOSAVE"),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("MONITOR",),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("FUNCTION", "LOAD", "#!lua name=x\nserver.register_function('x', function() end)"),
    ("SCRIPT", "FLUSH"),
    ("KEYS", "*"),
    ("MIGRATE", "127.0.0.1", "1", "x", "0", "1"),
    ("SUBSCRIBE", "x"),
    ("SWAPDB", "0", "1"),
    ("GET", "elsewhere:key"),
    ("SET", "elsewhere:key", "x"),
]


@pytest.mark.parametrize("attempt", FORBIDDEN, ids=lambda attempt: " ".join(map(str, attempt[:2])))
@pytest.mark.parametrize("role", ROLES)
def test_nobody_administers_the_server_or_sees_what_is_not_the_deployment_s(
    users: dict[str, "redis.Redis"], role: str, attempt: Try
) -> None:
    assert not permitted(users[role], attempt)


@pytest.mark.parametrize("role", CHAIN)
def test_names_of_keys_are_not_listed_and_secrets_of_clients_not_read(
    users: dict[str, "redis.Redis"], role: str
) -> None:
    for attempt in (("SCAN", 0), ("RANDOMKEY",), ("DBSIZE",), ("XRANGE", f"{PREFIX}dead-letters", "-", "+")):
        assert not permitted(users[role], attempt)
    assert permitted(users[role], xadd("dead-letters"))


def test_a_script_has_the_rights_of_who_runs_it(users: dict[str, "redis.Redis"]) -> None:
    write = "return redis.pcall('XADD', KEYS[1], '*', 'e', 'x')"
    for role in CHAIN[1:]:
        with pytest.raises(redis.ResponseError, match=r"ACL failure in script|permission"):
            users[role].eval(write, 1, f"{PREFIX}inbox:nobody-1")


def test_the_operator_has_the_keys_of_the_deployment(users: dict[str, "redis.Redis"]) -> None:
    operator = users[OPERATOR]
    operator.sadd(f"{PREFIX}processes", "worker-1")
    operator.set(f"{PREFIX}alive:worker-1", "{}")
    operator.xadd(f"{PREFIX}dead-letters", {"reason": "x"})
    assert operator.xlen(f"{PREFIX}dead-letters")
    assert operator.eval("return 1", 0) == 1, "as services may"
    assert operator.client_unblock(1_000_000) == 0
    assert operator.delete(f"{PREFIX}alive:worker-1", f"{PREFIX}dead-letters") == 2


@pytest.mark.parametrize("prefix", ["a*b?:", "[x]:", "back\\slash:", "^:"])
def test_a_prefix_stands_for_itself(users: dict[str, "redis.Redis"], prefix: str) -> None:
    with (
        RedisServer(users=OURS.acl_file(prefix)) as server,
        redis.Redis.from_url(OURS.url("gateway", server.address), socket_timeout=60) as gateway,
    ):
        assert permitted(gateway, ("SET", f"{prefix}alive:gateway-1", "x"))
        for other in ("axbc:", "x:", "backslash:", "xx:", ":"):
            assert not permitted(gateway, ("SET", f"{other}alive:gateway-1", "x"))


def test_a_prefix_with_white_space_is_refused() -> None:
    with pytest.raises(ValueError, match="white space"):
        rules("gateway", "my quire:")


def test_what_containers_get(tmp_path: Path) -> None:
    """Made by any Python, without what Quire needs."""
    directory = tmp_path / "secrets"
    command = [sys.executable, "-S", "-m", "ops.launcher.acl", str(directory)]  # no packages
    first = subprocess.run(
        command, cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True
    )
    assert first.returncode == 0, first.stderr
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    texts = {path.name: path.read_text() for path in directory.iterdir()}
    assert set(texts) == {"users.acl", "secret", *(f"{role}.url" for role in ROLES)}
    passwords = [text.partition("@")[0].rpartition(":")[2] for name, text in texts.items() if ".url" in name]
    assert len(set(passwords)) == len(ROLES)
    assert not any(password in texts["users.acl"] for password in passwords)
    assert texts["gateway.url"].startswith("redis://gateway:")
    assert texts["gateway.url"].endswith("@redis:6379/0")
    assert all(path.stat().st_mode & 0o004 for path in directory.iterdir()), (
        "a container's user is another one"
    )
    assert OURS.passwords["gateway"] not in repr(OURS), "not in a log by accident"


def made(monkeypatch: pytest.MonkeyPatch, directory: Path, *options: str) -> dict[str, str]:
    """What the command leaves in a directory, by file."""
    monkeypatch.setattr(sys, "argv", ["acl", str(directory), *options])
    assert acl.main() == 0
    return {path.name: path.read_text() for path in directory.iterdir()}


@pytest.mark.parametrize("prefix", ["quire:", "{one}:", "a[*]b\\:"])
def test_an_upgrade_changes_rights_and_no_password(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that processes of both versions go on."""
    directory = tmp_path / "secrets"
    before = made(monkeypatch, directory, "--prefix", prefix, "--redis", "unix:///run/redis.sock")
    monkeypatch.setattr(acl, "_PROCESS", f"{acl._PROCESS} +echo")
    after = made(monkeypatch, directory)
    assert after.pop("users.acl") == before.pop("users.acl").replace(" +xdel ", " +xdel +echo ")
    assert after == before
    assert stat.S_IMODE((directory / "users.acl").stat().st_mode) == 0o444
    assert made(monkeypatch, directory, "--prefix", "other:")["users.acl"].count(" ~other:processes ") == 4


def test_users_that_were_added_stay_and_a_server_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "secrets"
    before = made(monkeypatch, directory)["users.acl"]
    added = "user admin on >password +@all ~* &*\nuser backup on nopass -@all +ping\n"
    users = directory / "users.acl"
    users.chmod(0o644)
    users.write_text(f"{added}\n{before}")
    assert made(monkeypatch, directory)["users.acl"] == before + added
    assert made(monkeypatch, directory)["users.acl"] == before + added
    with (
        RedisServer(users=before + added) as server,
        redis.Redis.from_url(
            server.address.replace("://", "://admin:password@"), socket_timeout=60
        ) as client,
    ):
        assert "admin" in client.acl_users()


def test_a_server_for_a_directory_that_is_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "secrets"
    before = made(monkeypatch, directory)
    monkeypatch.setattr(sys, "argv", ["acl", str(directory), "--redis", "redis://elsewhere:6379/0"])
    assert acl.main() == 2
    assert capsys.readouterr().err.endswith("is there, and its URLs stay as they are\n")
    assert {path.name: path.read_text() for path in directory.iterdir()} == before


def test_a_directory_of_something_else_stays_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["acl", str(tmp_path)])
    assert acl.main() == 2
    assert "users.acl" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    made(monkeypatch, tmp_path / "secrets")
    (tmp_path / "secrets" / "worker.url").unlink()
    assert acl.main() == 2
    assert "worker.url" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["127.0.0.1:6379", "http://redis:6379", "redis://:password@redis", "redis"])
def test_what_is_no_url_of_redis_makes_no_passwords(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["acl", str(tmp_path / "secrets"), "--redis", url])
    assert acl.main() == 2
    assert capsys.readouterr().err.startswith("--redis: a URL without user and password")
    assert not (tmp_path / "secrets").exists()


def test_the_gateway_may_run_what_its_scripts_call() -> None:
    """A Redis whose users were made by an earlier version need not be told of it, either."""
    allowed = {rule[1:] for rule in rules("gateway", "quire:") if rule.startswith("+")}
    called = {
        command.lower()
        for file in Path(gateway.__file__).parent.rglob("*.py")
        for command in re.findall(r"redis\.call\(\s*'(\w+)'", file.read_text(encoding="utf-8"))
    }
    assert "zrange" in called
    assert called <= allowed
