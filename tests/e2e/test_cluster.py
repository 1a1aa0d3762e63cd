"""A deployment on one server of a Redis Cluster, whose keys move to another in the middle of an answer."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ops.cli.main import main
from ops.launcher.acl import OPERATOR, rules
from tests.support.cluster import Cluster
from tests.support.deployment import NAMES, SERVICES, Deployment

REQUEST = {
    "model": "quire-tiny",
    "prompt": "The fox",
    "max_tokens": 200,
    "temperature": 0,
    "ignore_eos": True,
}


class OnCluster(Deployment):
    """Its services have the URLs of different servers, none of which need have its keys."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        prefix = cluster.prefixes()[1]
        super().__init__(cluster.servers[1], directory, QUIRE_STREAM_PREFIX=prefix)

    def _user(self, role: str) -> str:
        password = secrets.token_hex(32)
        for client in self.cluster.clients:
            client.execute_command("ACL", "SETUSER", role, "on", f">{password}", *rules(role, self.prefix))
        number = [*NAMES.values(), OPERATOR].index(role) % len(self.cluster.servers)
        server = self.cluster.servers[number]
        return self.cluster.url(number).replace(f"default:{server.password}", f"{role}:{password}")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnCluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        deployment = OnCluster(cluster, tmp_path_factory.mktemp("deployment"))
        try:
            yield deployment.start(SERVICES)
        finally:
            deployment.stop()
    finally:
        cluster.stop()


def test_tools_find_it(
    deployment: OnCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # not what this user has started, nor left behind
    monkeypatch.setenv("QUIRE_REDIS_URL", deployment.redis_urls[OPERATOR])
    monkeypatch.setenv("QUIRE_STREAM_PREFIX", deployment.prefix)
    assert main(["status"]) == 0
    assert "quire-tiny" in capsys.readouterr().out


def test_what_is_stored_is_found(deployment: OnCluster) -> None:
    url, request = f"{deployment.url}/v1/responses", {"input": "hi", "model": "quire-tiny"}
    made = httpx.post(url, json=request | {"max_output_tokens": 4}, timeout=60)
    found = httpx.get(f"{url}/{made.json()['id']}", timeout=60)
    assert found.json()["output"] == made.json()["output"]


def test_an_answer_goes_on_where_the_keys_are(deployment: OnCluster) -> None:
    url, cluster = f"{deployment.url}/v1/completions", deployment.cluster
    (choice,) = httpx.post(url, json=REQUEST, timeout=60).json()["choices"]
    text, moved = "", False
    with httpx.stream("POST", url, json=REQUEST | {"stream": True}, timeout=120) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
            if len(text) > 20 and not moved:
                cluster.move(deployment.prefix, 2)
                moved = True
    assert moved
    assert text == choice["text"]
    assert [client.dbsize() > 0 for client in cluster.clients] == [False, False, True]
