"""`python3 -m ops.images.checks`: what docker-compose.yml promises, tried on the deployment that runs.

`compose_test.sh` starts it, with COMPOSE_PROJECT_NAME and, if they are not the defaults, QUIRE_PORT,
JAEGER_PORT, PROMETHEUS_PORT and QUIRE_MODEL_NAME. It needs `docker compose`, and of Python its own library.
Containers are killed, replaced and at last stopped. The first promise that is not kept ends it with status 1.
"""

import json
import os
import sys
import time

from ops.images.deployment import (
    ANSWER,
    CHAIN,
    JAEGER,
    MODEL,
    PROMETHEUS,
    REFERENCE,
    SERVICES,
    Broken,
    Stream,
    asked,
    containers,
    docker,
    inside,
    inspected,
    kill,
    promise,
    status_of,
    use_key,
    wait_for_restart,
    wait_ready,
    wait_until,
    whole,
)


def main() -> int:
    try:
        for check in (
            *(it_answers, images_are_small, files_with_images_are_read),
            *(idle_costs_little, ports_are_those_of_pages),
            *(roots_and_limits_are_set, limits_hold),
            *(what_is_inner_reaches_nothing_outside, redis_knows_its_users, nothing_is_compiled_at_a_start),
            *(metrics_lead_to_traces, what_was_planned_is_on_record),
            *(keys_are_given_out, the_dead_come_back, the_gateway_comes_back, a_stopped_process_is_ended),
            *(two_of_a_kind_share, services_are_replaced, a_model_comes_from_the_hub),
            answers_end_before_the_stop,
        ):
            began = time.monotonic()
            print(f"== {check.__name__.replace('_', ' ')}", flush=True)
            check()
            print(f"   {time.monotonic() - began:.0f} s", flush=True)
    except Broken as problem:
        print(f"compose-test: {problem}", file=sys.stderr)
        return 1
    return 0


def it_answers() -> None:
    wait_ready()
    REFERENCE.update(whole())
    promise(len(REFERENCE) == 2 and all(map(len, REFERENCE.values())), f"no texts: {REFERENCE}")
    Stream().ends_whole("nothing happens")
    wait_until(
        "all containers are healthy",
        lambda: all(inspected(each)["State"]["Health"]["Status"] == "healthy" for each in SERVICES),
    )


SMALL_BYTES = 250_000_000
"""An image without torch has fewer."""


def images_are_small() -> None:
    for service in ("gateway", "tokenizer", "scheduler"):
        size = int(json.loads(docker("image", "inspect", inspected(service)["Image"]).stdout)[0]["Size"])
        promise(size < SMALL_BYTES, f"the image of {service} has {size / 1e6:.0f} MB")


IMAGE_FILES = """
import io
from PIL import Image
from ops.model_directory.image_files import FORMATS, measured
for form in FORMATS:
    Image.new("RGB", (3, 2)).save(file := io.BytesIO(), form)
    print(form, *measured(file.getvalue()))"""


def files_with_images_are_read() -> None:
    found = inside("tokenizer", IMAGE_FILES).split("\n")
    promise(found == [f"{form} 3 2" for form in ("PNG", "JPEG", "WEBP", "GIF")], f"it read {found}")


IDLE_SECONDS = 60.0
"""Each container has two health checks in this time."""
IDLE_CORES = 0.1
"""Cores that all containers take together while nobody asks, at most."""
CPU_TIME = """cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null ||
awk '$1 == "usage_usec" {print $2 "000"}' /sys/fs/cgroup/cpu.stat"""
"""Nanoseconds of CPU time of a container: of control groups of version 1, and of version 2."""


def idle_costs_little() -> None:
    def used() -> float:
        return sum(int(inside(service, CPU_TIME, python=False)) for service in SERVICES) / 1e9

    before, began = used(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    cores = (used() - before) / (time.monotonic() - began)
    promise(cores < IDLE_CORES, f"without a request {cores:.2f} cores are busy")
    print(f"   {cores:.1%} of a core, health checks included")


WATCHING = ("jaeger", "prometheus")
PORTS = {"gateway": 8000, "jaeger": 16686, "prometheus": 9090}


def ports_are_those_of_pages() -> None:
    for service in (*SERVICES, *WATCHING):
        said = inspected(service)["HostConfig"]["PortBindings"] or {}
        # Podman also has the ports that an image names.
        bound = {port: places for port, places in said.items() if places}
        promise(
            [*bound] == [f"{PORTS[service]}/tcp"] if service in PORTS else not bound,
            f"{service} publishes {bound}",
        )
        for places in bound.values():
            promise({place["HostIp"] for place in places} == {"127.0.0.1"}, f"{service} is not on loopback")


RIGHTS = "grep -E 'CapBnd|NoNewPrivs' /proc/self/status"


def roots_and_limits_are_set() -> None:
    podman = "Podman" in docker("version").stdout  # which does not tell how logs are bounded
    for service in (*SERVICES, *WATCHING):
        found = inspected(service)
        host, user = found["HostConfig"], found["Config"]["User"]
        promise(host["ReadonlyRootfs"], f"the root of {service} is not read-only")
        rights = dict(map(str.split, inside(service, RIGHTS, python=False).splitlines()))
        promise(int(rights["CapBnd:"], 16) == 0, f"{service} may get capabilities: {rights}")
        promise(rights["NoNewPrivs:"] == "1", f"{service} may get new privileges")
        promise(user.split(":")[0] not in ("", "0", "root"), f"{service} runs as {user or 'root'}")
        promise(0 < host["PidsLimit"] <= 4096, f"{service} has no limit on processes")
        promise(host["Memory"] > 0 or service in ("redis", "worker"), f"{service} has no limit on memory")
        promise(host["RestartPolicy"]["Name"] == "unless-stopped", f"{service} is not restarted")
        log = host["LogConfig"]["Config"]
        is_bounded = log == {"max-size": "10m", "max-file": "3"}
        promise(is_bounded or (podman and log is None), f"{service}'s log grows: {log}")


def limits_hold() -> None:
    for service in SERVICES:
        place = "/data/../x" if service == "redis" else "/home/quire/x"
        said = inside(service, f"touch {place} /opt/x 2>&1", check=False, python=False)
        promise(said.count("Read-only file system") == 2, f"{service} writes to its root: {said}")
    grown = docker("compose", "exec", "-T", "gateway", "python", "-c", "b'x' * 2**32", check=False)
    promise(grown.returncode == 137, f"4 GiB in the gateway's container: {grown.returncode} {grown.stderr}")
    forks = """import os, signal
children = []
try:
    while len(children) < 5000:
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
except BlockingIOError:
    pass
finally:
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
print(len(children))"""
    number = int(inside("scheduler", forks))
    promise(0 < number < 1024, f"{number} processes in the scheduler's container")
    print(f"   {number} more processes fit; 4 GiB in the gateway's container are too many")
    Stream().ends_whole("after that")


def what_is_inner_reaches_nothing_outside() -> None:
    """All its networks are internal, and it has no default route. Docker before 25 gives it one, and drops
    what takes it."""
    for service in ("redis", "scheduler"):
        networks = inspected(service)["NetworkSettings"]["Networks"]
        described = [json.loads(docker("network", "inspect", name).stdout)[0] for name in networks]
        open_ones = [each["Name"] for each in described if not each["Internal"]]
        promise(bool(described) and not open_ones, f"{service} has a way out: {open_ones or 'no network'}")
        if "older_engines" not in os.environ.get("COMPOSE_FILE", ""):
            routes = inside(service, "cat /proc/net/route", python=False).splitlines()[1:]
            ways = [line for line in routes if line.split()[1] == "00000000"]
            promise(bool(routes) and not ways, f"{service} has a way out: {ways or routes}")


ASK_REDIS = """import socket, sys
from pathlib import Path
from urllib.parse import urlsplit
where = urlsplit(Path("/run/secrets/redis-url").read_text().strip())
with socket.create_connection((where.hostname, where.port), 5) as redis:
    if sys.argv[1] == "known":
        redis.sendall(f"AUTH {where.username} {where.password}\\r\\n".encode())
        print(redis.recv(999))
    for command in sys.argv[2:]:
        redis.sendall(command.encode() + b"\\r\\n")
        print(redis.recv(999))
"""


def redis_knows_its_users() -> None:
    def says(*arguments: str) -> list[str]:
        done = docker("compose", "exec", "-T", "gateway", "python", "-c", ASK_REDIS, *arguments)
        return done.stdout.splitlines()

    unknown = says("unknown", "GET quire:processes", "XADD quire:calls:Tokenizer:x * e 1")
    promise(all("NOAUTH" in reply for reply in unknown), f"Redis asks for no password: {unknown}")
    refused = (
        *("XADD quire:inbox:worker-1 * e 1", f"XADD quire:calls:Worker:{MODEL} * e 1"),
        *("XREAD STREAMS quire:inbox:scheduler-1 0", "SET quire:alive:worker-1 x", "KEYS *", "FLUSHALL"),
        *("CONFIG GET *", "ACL LIST", "SET other:key x", "HSET quire:keys a b"),
    )
    welcome, allowed, *answers = says("known", "SMEMBERS quire:processes", *refused)
    promise("+OK" in welcome and "worker-" in allowed, f"the gateway's user: {welcome} {allowed}")
    for command, answer in zip(refused, answers, strict=True):
        promise("NOPERM" in answer, f"a gateway may: {command}: {answer}")


# What Python would compile to start: modules without bytecode, or with bytecode of another source.
UNCOMPILED = """import importlib, os, struct, sys
importlib.import_module(sys.argv[1])
for module in list(sys.modules.values()):
    spec = getattr(module, "__spec__", None)
    if spec is None or not spec.cached or not (spec.origin or "").endswith(".py"):
        continue
    try:
        with open(spec.cached, "rb") as file:
            _, flags, moment, size = struct.unpack("<4sIII", file.read(16))
    except FileNotFoundError:
        print(module.__name__)
        continue
    source = os.stat(spec.origin)
    if not flags and (moment, size) != (int(source.st_mtime) & 0xFFFFFFFF, source.st_size):
        print(module.__name__)
"""


def nothing_is_compiled_at_a_start() -> None:
    for service in CHAIN:
        (*_, module) = inspected(service)["Config"]["Cmd"]
        for started in (f"{module}.__main__", "ops.runtime.health"):
            done = docker("compose", "exec", "-T", service, "python", "-c", UNCOMPILED, started)
            promise(not done.stdout.strip(), f"{service} compiles {done.stdout.split()}")


def metrics_lead_to_traces() -> None:
    """Prometheus has values of every process, and beside them traces, which have spans of every service."""

    def measuring() -> set[str]:
        found = asked(PROMETHEUS, "v1/query", query="quire:process_cpu_seconds_total")["data"]["result"]
        return {each["metric"]["engine"].partition("-")[0] for each in found}

    took = wait_until("Prometheus has read of every process", lambda: measuring() == {*CHAIN})

    def examples() -> list[str]:
        names = {"query": "vllm:e2e_request_latency_seconds_bucket", "start": "0", "end": str(time.time())}
        series = asked(PROMETHEUS, "v1/query_exemplars", **names)["data"]
        found = [each for one in series for each in one["exemplars"]]
        return [each["labels"]["trace_id"] for each in sorted(found, key=lambda each: each["timestamp"])]

    wait_until("Prometheus has traces beside its values", lambda: bool(examples()))

    def services() -> set[str]:
        (trace,) = asked(JAEGER, f"traces/{examples()[-1]}")["data"]
        return {process["serviceName"] for process in trace["processes"].values()}

    wait_until("such a trace has spans of all", lambda: services() == {f"quire-{name}" for name in CHAIN})
    print(f"   Prometheus had read of every process after {took:.0f} s")


def what_was_planned_is_on_record() -> None:
    inside("scheduler", "kill -USR1 1", python=False)  # init passes it on
    name = "ls /recordings/*.quire 2>/dev/null"
    wait_until("there is a recording", lambda: bool(inside("scheduler", name, check=False, python=False)))
    (file, *_) = inside("scheduler", name, python=False).split()
    said = docker("compose", "run", "--rm", "-T", "quire", "replay", file).stdout
    print(f"   {said.splitlines()[-1]}")


def keys_are_given_out() -> None:
    quire = ("compose", "run", "--rm", "-T", "quire")
    shown = docker(*quire, "status").stdout
    promise(all(f"  {service} " in shown for service in CHAIN), f"quire status: {shown}")
    given = docker(*quire, "keys", "add", "test").stdout.strip()
    wait_until("a key is needed", lambda: status_of("/v1/models") == 401)
    use_key(given)
    promise(status_of("/v1/models") == 200, "the key is not accepted")
    Stream().ends_whole("with a key")


def the_dead_come_back() -> None:
    for service in ("worker", "scheduler", "tokenizer", "redis"):
        restarts = inspected(service)["RestartCount"]
        stream = Stream().begun()
        kill(service)
        stream.ends_whole(f"{service} killed")
        wait_for_restart(service, restarts)
        wait_ready()


def the_gateway_comes_back() -> None:
    stream = Stream().begun()
    kill("gateway")
    began = time.monotonic()
    promise(bool(stream.ends().problem), "a stream goes on without its gateway")
    wait_ready()
    print(f"   gateway killed: it answers again after {time.monotonic() - began:.1f} s")
    Stream().ends_whole("after that")


def a_stopped_process_is_ended() -> None:
    """One that hangs and cannot end itself. Until then nobody does its work, and answers fail."""
    restarts = inspected("scheduler")["RestartCount"]
    kill("scheduler", "STOP")
    took = wait_for_restart("scheduler", restarts)
    wait_ready()
    Stream().ends_whole(f"scheduler stopped, and ended after {took:.0f} s")


def scale(service: str, number: int) -> None:
    """Start or stop containers of a service until it has this number, and wait until all are ready."""

    def serving() -> int:
        status = docker("compose", "run", "--rm", "-T", "quire", "status", check=False).stdout
        return sum(
            line.startswith(f"  {service} ") and "fingerprint=" in line for line in status.splitlines()
        )

    docker("compose", "up", "--detach", "--no-recreate", "--scale", f"{service}={number}")
    wait_until(f"{service} has {number}", lambda: serving() == number)


def two_of_a_kind_share() -> None:
    for service in ("tokenizer", "worker"):
        scale(service, 2)
        Stream().ends_whole(f"two of {service}")
        for _ in range(2):  # whichever has it
            stream = Stream().begun()
            kill(service)
            stream.ends_whole(f"one of two of {service} killed")
        scale(service, 1)


def services_are_replaced() -> None:
    """Each process, under load. A gateway ends its answers before another takes its port."""
    for service in ("gateway", "tokenizer", "scheduler", "worker", "redis"):
        (old,) = containers(service)
        streams = [Stream().begun() for _ in range(3)]
        docker("compose", "up", "--detach", "--no-deps", "--force-recreate", service)
        promise(containers(service) != [old], f"{service} was not replaced")
        for stream in streams:
            stream.ends_whole(f"{service} replaced")
        wait_ready()


ONE_TOKEN = {**ANSWER, "max_tokens": 1, "n": 1}


def a_model_comes_from_the_hub() -> None:
    """Tokenizer and worker fetch it into one volume. It is the model from before, under another name."""
    os.environ.update({"MODEL_ID": "forest/fox", "QUIRE_MODEL_NAME": "fox"})
    ANSWER["model"] = ONE_TOKEN["model"] = "fox"
    chain = ("tokenizer", "scheduler", "worker")
    for start in ("fetched", "found in its volume"):
        docker("compose", "up", "--detach", "--no-deps", "--force-recreate", *chain)
        took = wait_until("the model is there", lambda: status_of("/v1/completions", ONE_TOKEN) == 200)
        Stream().ends_whole(f"a model of the Hub, {start}, after {took:.0f} s")
        os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # where nobody answers


def answers_end_before_the_stop() -> None:
    stream = Stream().begun()
    began = time.monotonic()
    docker("compose", "stop")
    stream.ends_whole(f"stopped in {time.monotonic() - began:.0f} s")
    for service in SERVICES:
        ended = json.loads(docker("inspect", *docker("compose", "ps", "-aq", service).stdout.split()).stdout)
        for one in ended:
            promise(one["State"]["ExitCode"] in (0, 143), f"{service} ended with {one['State']['ExitCode']}")


if __name__ == "__main__":
    sys.exit(main())
