"""`quire up`, `status` and `down` as a person sees them: stand-ins for the services, a real Redis."""

import asyncio
import errno
import json
import os
import signal
import socket
import stat
from pathlib import Path

import psutil
import pytest
import redis

from ops.launcher.acl import ROLES
from ops.launcher.launch import _until_signal, check_directory, check_port
from ops.launcher.redis_server import RedisServer, free_port
from ops.runtime.errors import LaunchError
from tests.support.stage import Stage


def test_starts_all_and_ctrl_c_ends_all_from_the_front(stage: Stage) -> None:
    launcher = stage.up("--workers", "2")
    started = [name for name, _ in stage.journal("start")]
    assert sorted(started) == ["gateway", "scheduler", "tokenizer", "worker", "worker"]
    # As a terminal does: to every process of the launcher's group, which is the launcher alone.
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=60) == 0
    ended = [name for name, _ in stage.journal("end")]
    assert ended[0] == "gateway"
    assert sorted(ended) == sorted(started)
    assert stage.alive() == []
    assert not list(stage.directory.glob("state/**/deployment.json"))


def test_several_models_each_with_processes_of_its_own(stage: Stage) -> None:
    launcher = stage.up("--model", f"owl={stage.model}")
    services = ("worker", "scheduler", "tokenizer")
    assert sorted(name for name, _ in stage.journal("start")) == sorted(["gateway", *services, *services])
    record = json.loads((stage.directory / f"state/quire/{stage.port}/deployment.json").read_text())
    assert record["model"] == "fox, owl"
    own = {f"{service}-{model}" for service in services for model in ("fox", "owl")}
    assert set(record["processes"]) == {"redis", "gateway", *own}
    for name, process in record["processes"].items():
        environment = psutil.Process(process["pid"]).environ()
        if name in own:
            assert environment["QUIRE_MODEL_NAME"] == name.split("-")[1]
        assert environment.get("QUIRE_MEMORY_SHARE") == ("0.5000" if name.startswith("worker") else None)
    (shown,) = json.loads(stage.quire("status", "--json").stdout)
    assert {process["info"].get("model") for process in shown["processes"]} >= {"fox", "owl"}
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=60) == 0


def test_children_are_out_of_reach_of_the_terminals_ctrl_c(stage: Stage) -> None:
    launcher = stage.up()
    groups = {os.getpgid(pid) for _, pid in stage.journal("start")}
    assert os.getpgid(launcher.pid) not in groups
    assert len(groups) == 4


def test_a_second_ctrl_c_ends_at_once_what_does_not_listen(stage: Stage) -> None:
    stage.environment |= {"STUBBORN": "gateway", "QUIRE_STOP_SECONDS": "3600"}
    launcher = stage.up()
    launcher.send_signal(signal.SIGINT)
    assert launcher.stdout is not None
    while "stop " not in launcher.stdout.readline():
        pass
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=60) == 0, "sooner than the grace of a process that does not listen"
    assert stage.alive() == []


def test_what_dies_is_started_again_and_its_lease_ended(stage: Stage) -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url, socket_timeout=60) as client:
        stage.environment["QUIRE_REDIS_URL"] = server.url
        stage.up()
        ((_, pid),) = [entry for entry in stage.journal("start") if entry[0] == "worker"]
        key = f"quire:alive:worker-{pid}"
        assert client.exists(key)
        os.kill(pid, signal.SIGKILL)
        stage.wait_for(lambda: [name for name, _ in stage.journal("start")].count("worker") == 2)
        assert not client.exists(key), "its peers do not wait for the lease to run out"
        (_, successor) = [entry for entry in stage.journal("start") if entry[0] == "worker"][1]
        stage.wait_for(lambda: bool(client.exists(f"quire:alive:worker-{successor}")))
        leases = [key for key in client.keys("quire:alive:*") if client.get(key)]
        assert len(leases) == 4, "beside them is the note of a death, which is empty"


def test_redis_is_started_again_with_its_data(stage: Stage) -> None:
    stage.up()
    record = json.loads((stage.directory / f"state/quire/{stage.port}/deployment.json").read_text())
    with redis.Redis.from_url(record["redis_url"], socket_timeout=60) as client:
        client.set("quire:kept", "yes")
        client.execute_command("WAITAOF", 1, 0, 60_000)
        os.kill(record["processes"]["redis"]["pid"], signal.SIGKILL)
        stage.wait_for(lambda: _answers(client))
        assert client.get("quire:kept") == b"yes"


def test_every_process_has_its_own_user_of_the_embedded_redis(stage: Stage) -> None:
    """Passwords are in the environments of processes and in files of this user, and on no command line."""
    stage.up("--workers", "2")
    path = stage.directory / f"state/quire/{stage.port}/deployment.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    urls = {"operator": json.loads(path.read_text())["redis_url"]}
    for name, pid in stage.journal("start"):
        urls[name] = psutil.Process(pid).environ()["QUIRE_REDIS_URL"]
    users = {role: url.removeprefix("unix://").partition(":")[0] for role, url in urls.items()}
    assert users == {role: role for role in ROLES}
    passwords = {role: url.partition("@")[0].rpartition(":")[2] for role, url in urls.items()}
    assert len(set(passwords.values())) == len(ROLES)
    lines = [part for pid in stage.alive() for part in psutil.Process(pid).cmdline()]
    assert not any(password in line for line in lines for password in passwords.values())
    with (
        redis.Redis.from_url(urls["gateway"], socket_timeout=60) as gateway,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        gateway.xadd("quire:inbox:worker-1", {"e": "a plan"})


def test_api_keys_are_there_again_at_the_next_start(stage: Stage) -> None:
    kept = stage.directory / f"state/quire/{stage.port}/keys.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"d1": "{}"}')
    stage.up()
    record = json.loads(kept.with_name("deployment.json").read_text())
    with redis.Redis.from_url(record["redis_url"], decode_responses=True, socket_timeout=60) as client:
        keys = set(client.hkeys("quire:keys"))
    assert keys == {"version", "d1"}, "and the key for the first token is gone"


def test_kill_9_of_the_launcher_leaves_no_orphans(stage: Stage) -> None:
    launcher = stage.up()
    assert len(stage.alive()) == 6
    launcher.kill()
    launcher.wait()
    stage.wait_for(lambda: stage.alive() == [])
    assert stage.quire("status").returncode == 1
    assert stage.quire("down").returncode == 0
    assert not list(stage.directory.glob("state/**/deployment.json"))


def test_what_never_comes_up_is_given_up_with_its_last_words(stage: Stage) -> None:
    stage.environment |= {"BROKEN": "scheduler", "STATUS": "1"}
    result = stage.quire("up", "--port", str(stage.port), "--model", str(stage.model))
    assert result.returncode == 1
    assert "quire: the scheduler is broken" in result.stderr
    assert [name for name, _ in stage.journal("start")].count("scheduler") == 3
    assert stage.alive() == []


def test_wrong_settings_are_given_up_at_once(stage: Stage) -> None:
    stage.environment |= {"BROKEN": "tokenizer", "STATUS": "2"}
    result = stage.quire("up", "--port", str(stage.port), "--model", str(stage.model))
    assert result.returncode == 1
    assert [name for name, _ in stage.journal("start")].count("tokenizer") == 1


def test_detach_status_down(stage: Stage) -> None:
    stage.environment["QUIRE_KV_MEMRY"] = "1GiB"
    result = stage.quire("up", "--detach", "--port", str(stage.port), "--model", str(stage.model))
    assert result.returncode == 0, result.stdout
    assert "ignored QUIRE_KV_MEMRY is no setting: QUIRE_KV_MEMORY is" in result.stdout
    assert f"http://127.0.0.1:{stage.port}" in result.stdout
    status = stage.quire("status")
    assert status.returncode == 0
    for word in ("ready", "gateway", "tokenizer", "scheduler", "worker", "redis", "launcher", "fox"):
        assert word in status.stdout
    again = stage.quire("up", "--port", str(stage.port), "--model", str(stage.model))
    assert again.returncode == 1
    assert "runs already" in again.stderr
    down = stage.quire("down")
    assert down.returncode == 0
    assert f"stopped fox on http://127.0.0.1:{stage.port}" in down.stdout
    assert stage.alive() == []
    assert "nothing runs" in stage.quire("status").stdout
    assert "nothing to stop" in stage.quire("down").stdout


def test_down_asks_which_of_several(stage: Stage) -> None:
    other = str(free_port())
    stage.up()
    result = stage.quire("up", "--detach", "--port", other, "--model", str(stage.model))
    assert result.returncode == 0, result.stderr
    asked = stage.quire("down")
    assert asked.returncode == 2
    assert str(stage.port) in asked.stderr
    assert other in asked.stderr
    assert stage.quire("down", "--port", other).returncode == 0
    assert stage.launchers[0].poll() is None
    assert stage.quire("down", "--all").returncode == 0
    assert stage.launchers[0].wait(timeout=60) == 0


def test_detach_tells_why_it_failed(stage: Stage) -> None:
    stage.environment |= {"BROKEN": "worker", "STATUS": "2"}
    result = stage.quire("up", "--detach", "--port", str(stage.port), "--model", str(stage.model))
    assert result.returncode == 1
    assert "quire: the worker is broken" in result.stdout
    assert stage.alive() == []


def test_down_never_touches_a_process_that_only_has_the_number(stage: Stage) -> None:
    launcher = stage.up()
    path = stage.directory / f"state/quire/{stage.port}/deployment.json"
    record = json.loads(path.read_text())
    launcher.kill()
    launcher.wait()
    record["launcher"] = {"pid": os.getpid(), "started": "1"}  # this test, had it got a dead one's number
    path.write_text(json.dumps(record))
    assert stage.quire("down").returncode == 0


def test_a_taken_port_is_one_line(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = stage.quire("up", "--port", str(port), "--model", str(stage.model))
    assert result.returncode == 1
    assert result.stderr == f"quire up: port {port} is taken; choose another one with --port\n"
    assert result.stdout == ""


def test_a_port_that_only_root_may_listen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refused)
    with pytest.raises(LaunchError, match="port 80 is for root alone; choose another one with --port"):
        check_port("127.0.0.1", 80)


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(LaunchError, match="the working directory is gone; change to another one"):
        check_directory()


def test_a_redis_that_is_not_there_is_one_line(stage: Stage) -> None:
    stage.environment["QUIRE_REDIS_URL"] = f"redis://:secret@127.0.0.1:{free_port()}/0"
    result = stage.quire("up", "--port", str(stage.port), "--model", str(stage.model))
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "is unreachable" in line
    assert "secret" not in line


def test_a_redis_url_that_is_none_is_one_line(stage: Stage) -> None:
    stage.environment["QUIRE_REDIS_URL"] = "localhost:6379"
    result = stage.quire("up", "--port", str(stage.port), "--model", str(stage.model))
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("quire up: QUIRE_REDIS_URL: is no URL of Redis")


def test_a_directory_that_is_no_model_is_one_line(stage: Stage) -> None:
    (stage.model / "tokenizer.json").unlink()
    for model, reason in ((stage.model, "it has no tokenizer.json"), (stage.directory / "no", "no such")):
        result = stage.quire("up", "--port", str(stage.port), "--model", str(model))
        assert result.returncode == 2
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"quire up: {model} is not a model directory")
        assert reason in line


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


async def test_with_nohup_it_goes_on_when_the_terminal_is_closed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    said: list[str] = []
    try:
        async with _until_signal(said.append, 0, kill=lambda: None):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.01)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert said == []
