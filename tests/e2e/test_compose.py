"""docker-compose.yml without a container engine: its commands and environments as local processes.

Only what a container network would do is done by hand: `redis` becomes a socket, `jaeger` a port of
loopback, the mounted model its directory.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml

from gateway.settings import GatewaySettings
from gateway.upstream.admission import MAX_BYTES
from ops.launcher.acl import HEALTH, OPERATOR, ROLES, Credentials, write
from ops.launcher.redis_server import RedisServer, free_port
from ops.runtime.process import LAST_SECONDS
from ops.runtime.settings import ProcessSettings
from ops.runtime.watchdog import PATIENCE
from proto.rpc.bus import DEAD_LETTERS_KEPT, MAX_LETTER_BYTES, MAX_REASON

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "ops" / "images" / "Dockerfile").read_text()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WATCHING = ("jaeger", "prometheus", "grafana")
"""What others have made, to look at it."""
COMMAND_LINE = "quire"
"""What people run, and no process that stays."""
OURS = {name: service for name, service in SERVICES.items() if "build" in service and name != COMMAND_LINE}
STARTED = {name: service for name, service in OURS.items() if "profiles" not in service}


def resolve(text: str, **given: str) -> str:
    """`${NAME}`, `${NAME:-default}` and `${NAME:+other}` as compose does them, those within others first."""

    def value(found: re.Match[str]) -> str:
        name, kind, other = found.groups()
        if kind == ":+":
            return other if given.get(name) else ""
        return given.get(name) or other or ""

    while (done := re.sub(r"\$\{(\w+)(?:(:[-+])([^${}]*))?\}", value, text)) != text:
        text = done
    return text


class TraceReceiver:
    """Takes spans (OTLP over gRPC) and counts the exports that came."""

    def __init__(self) -> None:
        self.exports = 0
        self._server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        handlers = (grpc.method_handlers_generic_handler(service, {"Export": handler}),)
        self._server.add_generic_rpc_handlers(handlers)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def _export(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.exports += 1
        return b""

    def stop(self) -> None:
        self._server.stop(None).wait()


@dataclass
class Running:
    url: str
    environments: dict[str, dict[str, str]]
    receiver: TraceReceiver


def environment_of(
    service: dict[str, Any], jaeger_port: int, gateway_port: int, secrets: Path
) -> dict[str, str]:
    """What the container would have in its environment, on this machine's network and disk."""
    environment = {name: resolve(str(value)) for name, value in service["environment"].items()}
    for name, value in environment.items():
        environment[name] = re.sub(r"//jaeger:\d+", f"//127.0.0.1:{jaeger_port}", value)
    for secret in service["secrets"]:
        mounted = f"/run/secrets/{secret['target']}"
        file = resolve(COMPOSE["secrets"][secret["source"]]["file"]).replace("./secrets", str(secrets))
        environment = {name: file if value == mounted else value for name, value in environment.items()}
    for volume in service.get("volumes", []):
        source, target, _ = resolve(volume).split(":")
        environment = {
            name: str(ROOT / source) if value == target else value for name, value in environment.items()
        }
    if "QUIRE_PORT" in environment:
        assert environment["QUIRE_HOST"] == "0.0.0.0", "reachable from outside of its container"
        environment |= {"QUIRE_PORT": str(gateway_port), "QUIRE_HOST": "127.0.0.1"}
    return environment


def run(command: list[str]) -> list[str]:
    assert command[0] == "python"
    return [sys.executable, *command[1:]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    logs = tmp_path_factory.mktemp("compose")
    receiver, gateway_port = TraceReceiver(), free_port()
    url = f"http://127.0.0.1:{gateway_port}"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    inherited["TMPDIR"] = str(logs)  # where health checks remember
    processes: dict[str, subprocess.Popen[bytes]] = {}
    environments: dict[str, dict[str, str]] = {}
    credentials = Credentials()
    with RedisServer(users=credentials.acl_file("quire:")) as server:
        secrets = logs / "secrets"
        write(secrets, credentials, server.address, "quire:")
        try:
            for name, service in STARTED.items():
                environments[name] = inherited | environment_of(service, receiver.port, gateway_port, secrets)
                with (logs / f"{name}.log").open("wb") as log:
                    processes[name] = subprocess.Popen(
                        run(service["command"]), env=environments[name], cwd=logs, stdout=log, stderr=log
                    )
            wait_ready(url, processes, logs)
            yield Running(url, environments, receiver)
        finally:
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                process.wait(timeout=60)
            receiver.stop()


def wait_ready(url: str, processes: dict[str, subprocess.Popen[bytes]], logs: Path) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for name, process in processes.items():
            assert process.poll() is None, f"{name}:\n{(logs / f'{name}.log').read_text()}"
        try:
            if httpx.get(f"{url}/health/ready", timeout=60).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    texts = "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(logs.glob("*.log")))
    raise AssertionError(f"not ready:\n{texts}")


def test_it_answers_through_the_gateway(running: Running) -> None:
    body = {"model": "quire-tiny", "prompt": "Once upon a time", "max_tokens": 8}
    answer = httpx.post(f"{running.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"]


def test_traces_arrive_where_jaeger_would_be(running: Running) -> None:
    body = {"model": "quire-tiny", "prompt": "Once upon a time", "max_tokens": 2}
    assert httpx.post(f"{running.url}/v1/completions", json=body, timeout=60).status_code == 200
    deadline = time.monotonic() + 60
    while running.receiver.exports == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running.receiver.exports > 0


@pytest.mark.parametrize("name", STARTED)
def test_health_check_passes(running: Running, name: str) -> None:
    kind, *command = STARTED[name]["healthcheck"]["test"]
    assert kind == "CMD"
    result = subprocess.run(
        run(command), env=running.environments[name], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr


def test_health_check_fails_without_the_process(running: Running) -> None:
    command = run(STARTED["worker"]["healthcheck"]["test"][1:])
    with RedisServer() as empty:
        environment = running.environments["worker"] | {"QUIRE_REDIS_URL": empty.url}
        del environment["QUIRE_REDIS_URL_FILE"]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "no worker on" in result.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_pinned_restarted_and_without_rights(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", service["image"]), "an image of one exact version"
    assert service["restart"] == ("no" if name == COMMAND_LINE else "unless-stopped")
    assert service["user"].split(":")[0] not in ("", "0", "root")
    assert service["cap_drop"] == ["ALL"]
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:"), "open on loopback only"


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_has_bounds(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert "/tmp:size=64m,mode=1777" in service["tmpfs"]
    assert all(re.search(r":size=\d+[mg]\b", place) for place in service["tmpfs"])
    assert 0 < service["pids_limit"] <= 4096
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    if name != "redis":  # which has its maxmemory
        assert service["mem_limit"].startswith("${WORKER_MEMORY") == name.startswith("worker")


@pytest.mark.parametrize("name", OURS)
def test_a_container_is_stopped_later_than_its_process_stops(name: str) -> None:
    grace = float(OURS[name]["stop_grace_period"].removesuffix("s"))
    assert grace > ProcessSettings.model_fields["stop_seconds"].default + LAST_SECONDS


def test_compiled_code_is_its_services_alone() -> None:
    writable = {
        name: [volume.split(":")[0] for volume in service.get("volumes", []) if volume.endswith(":rw")]
        for name, service in OURS.items()
    }
    assert {name for name, volumes in writable.items() if "kernels" in volumes} == {"worker-gpu"}
    assert {name for name, volumes in writable.items() if "recordings" in volumes} == {"scheduler"}
    assert {name for name, volumes in writable.items() if "cache" in volumes} == {"worker"}
    assert {volume for volumes in writable.values() for volume in volumes} == {
        *("hub", "cache", "kernels", "recordings")
    }
    environment = SERVICES["worker-gpu"]["environment"]
    assert f"kernels:{environment['TRITON_CACHE_DIR']}:rw" in SERVICES["worker-gpu"]["volumes"]
    assert re.search(rf"install --directory --owner quire .*{environment['TRITON_CACHE_DIR']} ", DOCKERFILE)


def test_a_token_of_the_hub_is_a_secret() -> None:
    for service in OURS.values():
        assert "HF_TOKEN" not in service["environment"]
        if "HF_HOME" in service["environment"]:
            assert service["environment"]["HF_TOKEN_PATH"] == "/run/secrets/hf-token"
            assert {"source": "hf-token", "target": "hf-token"} in service["secrets"]


@pytest.mark.parametrize("name", OURS)
def test_every_service_of_ours_is_watched_and_waits_for_redis(name: str) -> None:
    service = OURS[name]
    check = service["healthcheck"]
    assert check["test"] == [
        *("CMD", "python", "-m", "ops.runtime.health", name.partition("-")[0]),
        *("--end-after", str(check["retries"])),
    ], "what the engine calls unhealthy is started again"
    # Its process's own watchdog comes first, which logs where it hangs.
    assert check["retries"] * float(check["interval"].removesuffix("s")) > PATIENCE
    loads = "QUIRE_MODEL" in service["environment"]  # which takes as long as fetching a model does
    assert check["start_period"] == ("1h" if loads else "60s")
    assert service["depends_on"]["redis"]["condition"] == "service_healthy"
    assert re.search(rf"^FROM runtime AS {service['build']['target']}$", DOCKERFILE, re.MULTILINE)
    (command,) = re.findall(
        rf"^FROM runtime AS {service['build']['target']}$.*?^CMD (.*?)$", DOCKERFILE, re.MULTILINE | re.DOTALL
    )
    assert yaml.safe_load(command) == service["command"], "the image's own command is the same"


class _Reset(yaml.SafeLoader):
    """Knows Compose's tag that takes a key out."""


_Reset.add_constructor("!reset", lambda loader, node: None)


def test_engines_that_check_no_more_often_at_a_start_check_often() -> None:
    """With older_engines.yml a service has as many seconds to be well again, and no `start_interval`."""
    text = (ROOT / "ops/images/older_engines.yml").read_text()
    older = yaml.load(text, _Reset)["services"]
    assert older.keys() == {name for name, service in SERVICES.items() if "healthcheck" in service}
    for name, service in older.items():
        usual, check = SERVICES[name]["healthcheck"], service["healthcheck"]
        assert check.pop("start_interval", "left") is None, "Compose refuses it for such an engine"
        merged = usual | check
        seconds = [
            int(each["retries"]) * float(each["interval"].removesuffix("s")) for each in (usual, merged)
        ]
        assert seconds[0] == seconds[1]
        assert name == "redis" or merged["test"] == [*usual["test"][:-1], str(check["retries"])]


def test_what_was_fetched_is_kept_and_user_10001_may_write_it() -> None:
    readers = [service for service in OURS.values() if "QUIRE_MODEL" in service["environment"]]
    assert len(readers) == 3
    for service in readers:
        home = service["environment"]["HF_HOME"]
        assert any(volume.split(":")[1] == home and volume.endswith(":rw") for volume in service["volumes"])
        assert re.search(rf"install --directory --owner quire .*{home} ", DOCKERFILE, re.MULTILINE)
        assert resolve(service["environment"]["QUIRE_MODEL"]) == "/model"


def test_redis_keeps_what_it_accepted_and_has_a_bound() -> None:
    command = resolve(" ".join(SERVICES["redis"]["command"]))
    assert "--appendonly yes" in command
    assert any(volume.endswith(":/data") for volume in SERVICES["redis"]["volumes"])
    assert "--maxmemory 2gb --maxmemory-policy noeviction" in command, "leases and streams are not evicted"


def test_redis_has_room_for_twice_what_may_lie_there() -> None:
    fields = GatewaySettings.model_fields
    stores = [fields[f"{name}_bytes"].default for name in ("responses", "files", "idempotency")]
    letters = DEAD_LETTERS_KEPT * (MAX_LETTER_BYTES + 2 * MAX_REASON)
    assert 2 * (sum(stores) + MAX_BYTES + letters) <= 2 * 2**30
    (memory,) = re.findall(r"maxMemory: (\w+)", (ROOT / "ops/helm/quire/values.yaml").read_text())
    assert memory == "2gb", "the chart's is the same"


def test_every_service_is_its_own_user_of_redis() -> None:
    """And has no other's password; Redis has none at all, for its file of users holds digests."""
    assert "--aclfile /run/secrets/users" in " ".join(SERVICES["redis"]["command"])
    health = SERVICES["redis"]["healthcheck"]["test"]
    assert health[health.index("--user") + 1] == HEALTH.split()[1]
    had = {
        name: [secret["source"] for secret in service.get("secrets", [])]
        for name, service in SERVICES.items()
    }
    had = {name: [secret for secret in secrets if secret != "hf-token"] for name, secrets in had.items()}
    assert had == {name: [name.partition("-")[0], "deployment"] for name in OURS} | {
        "redis": ["users"],
        **{name: [] for name in WATCHING},
        COMMAND_LINE: [OPERATOR],
    }
    for role in ROLES:
        assert resolve(COMPOSE["secrets"][role]["file"]) == f"./secrets/{role}.url"
    assert "QUIRE_REDIS_URL" not in str(COMPOSE).replace("QUIRE_REDIS_URL_FILE", "")


def test_only_the_gateway_is_reached_from_outside() -> None:
    assert COMPOSE["networks"]["inner"]["internal"]
    of = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert of["redis"] == of["scheduler"] == of[COMMAND_LINE] == {"inner"}
    assert {name for name, networks in of.items() if "front" in networks} == {"gateway"}
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "gateway": ["127.0.0.1:${QUIRE_PORT:-8000}:8000"],
        "jaeger": ["127.0.0.1:${JAEGER_PORT:-16686}:16686"],
        "prometheus": ["127.0.0.1:${PROMETHEUS_PORT:-9090}:9090"],
        "grafana": ["127.0.0.1:${GRAFANA_PORT:-3000}:3000"],
    }
    assert all(of[name] == {"watch"} for name in ("prometheus", "grafana")), "Redis is not within reach"


def test_what_is_kept_in_memory_fits() -> None:
    """A tmpfs counts as its container's memory, and Jaeger keeps traces of some 50 kB each."""
    megabytes = {"m": 1, "g": 1024}
    limits = {
        name: int(SERVICES[name]["mem_limit"][:-1]) * megabytes[SERVICES[name]["mem_limit"][-1]]
        for name in ("jaeger", "prometheus")
    }
    (flag,) = SERVICES["jaeger"]["command"]
    path, _, traces = flag.removeprefix("--set=").partition("=")
    assert path == "extensions.jaeger_storage.backends.some_storage.memory.max_traces"
    assert int(traces) * 0.05 < limits["jaeger"] / 2
    (place,) = [each for each in SERVICES["prometheus"]["tmpfs"] if each.startswith("/data:")]
    kept = int(re.findall(r"retention\.size=(\d+)MB", " ".join(SERVICES["prometheus"]["command"]))[0])
    room = int(re.findall(r"size=(\d+)m", place)[0])
    assert kept < room < limits["prometheus"]


@pytest.mark.parametrize("hosts", ["", "api.example.com, other.example.com"])
def test_prometheus_may_read_the_gateway_whatever_other_names_it_has(hosts: str) -> None:
    watched = yaml.safe_load((ROOT / "ops/watch/prometheus.yml").read_text())["scrape_configs"]
    (target,) = [target for one in watched for each in one["static_configs"] for target in each["targets"]]
    allowed = resolve(SERVICES["gateway"]["environment"]["QUIRE_ALLOWED_HOSTS"], QUIRE_ALLOWED_HOSTS=hosts)
    access = GatewaySettings(allowed_hosts=allowed).access
    for host in (target, *filter(None, hosts.split(", "))):
        assert access.answers_to(host)
    assert not access.answers_to("else.example.com")


def test_the_guide_names_all_that_selinux_would_keep_from_containers() -> None:
    guide = (ROOT / "docs/operate.md").read_text(encoding="utf-8")
    (paragraph,) = [one for one in guide.split("\n\n") if "chcon" in one]
    (named,) = re.findall(r"`chcon -Rt container_file_t ([^`]+)`", paragraph)
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    sources = [mount.rsplit(":", 2)[0] for mount in mounts if mount.startswith((".", "$"))]
    sources += [secret["file"] for secret in COMPOSE["secrets"].values()]
    assert len(sources) > 8
    for source in sources:
        place = Path(resolve(source))
        assert place == Path("/dev/null") or any(place.is_relative_to(one) for one in named.split())
        assert set(re.findall(r"\$\{(\w+)", source)) <= set(re.findall(r"`(\w+)`", paragraph))


def test_a_gpu_worker_is_a_profile_of_its_own() -> None:
    service = SERVICES["worker-gpu"]
    assert service["profiles"] == ["gpu"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert service["environment"]["QUIRE_DEVICE"] == "cuda"


def test_what_the_dockerfile_copies_exists_and_is_not_ignored() -> None:
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source in kept, source


def copied_by(stage: str) -> dict[str, str]:
    """What a stage of the Dockerfile copies from the checkout, each with its place in the stage."""
    (body,) = re.findall(rf"^FROM \S+ AS {stage}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    lines = [line.split() for line in re.findall(r"^COPY (?!--from)(.*)$", body, re.MULTILINE)]
    copied = {}
    for *sources, target in lines:
        for source in sources:
            name = f"{target}/{Path(source).name}" if target.endswith("/") else target
            copied[source] = name.removeprefix(".").strip("/")
    return copied


def laid_out(stages: tuple[str, ...], directory: Path) -> None:
    """What the stages copy, where they have it."""
    for stage in stages:
        for source, place in copied_by(stage).items():
            (directory / place).parent.mkdir(exist_ok=True)
            (directory / place).symlink_to(ROOT / source)


def python(code: str, directory: Path) -> str:
    """The output of a program that has the packages in `directory`."""
    environment = os.environ | {"PYTHONPATH": str(directory)}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=directory, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


FIND = "import setuptools, json; print(json.dumps(setuptools.find_packages()))"


@pytest.mark.parametrize("name", OURS)
def test_an_image_has_its_own_service_and_starts_with_nothing_else_of_ours(name: str, tmp_path: Path) -> None:
    target = OURS[name]["build"]["target"]
    package = OURS[name]["command"][-1]
    assert f"COPY --from=build-{target} /opt/quire /opt/quire" in DOCKERFILE
    laid_out(("source", f"build-{target}"), tmp_path)
    started = python(
        f"import {package}.__main__, ops.runtime.health as health; print(health.__file__)", tmp_path
    )
    assert started.startswith(str(tmp_path))
    packages = set(yaml.safe_load(python(FIND, tmp_path)))
    assert {each.split(".")[0] for each in packages} == {"proto", "ops", package}
    assert {".".join(each.split(".")[:2]) for each in packages if each.startswith("ops")} == {
        "ops",
        "ops.runtime",
    }


def test_the_command_line_s_image_needs_no_library_that_computes(tmp_path: Path) -> None:
    assert "COPY --from=build-operator /opt/quire /opt/quire" in DOCKERFILE
    laid_out(("source", "build-operator"), tmp_path)
    parts = "import ops.cli.main, ops.cli.status, ops.cli.keys, ops.cli.chat, sys; "
    shown = python(
        f"{parts} print(ops.__file__); print({{'torch', 'tokenizers', 'numpy'}} & sys.modules.keys())",
        tmp_path,
    )
    assert shown.startswith(str(tmp_path))
    assert shown.split("\n")[1] == "set()"


def test_stages_that_the_dockerfile_builds_on_exist() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    used = set(re.findall(r"^COPY --from=(\S+)", DOCKERFILE, re.MULTILINE))
    used |= {base for base in re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) if base in stages}
    assert used <= stages
    groups = set(re.findall(r"--extra (\w+)", DOCKERFILE))
    assert groups == {"gateway", "tokenizer", "scheduler", "worker", "operator"}
