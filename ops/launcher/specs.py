"""Which processes a deployment has, and with which settings each is started."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.settings import GatewaySettings
from ops.launcher.kept_keys import kept
from ops.runtime.address import url_from_here
from ops.runtime.api_keys import KeyFileError, read_keys
from ops.runtime.child import Spec
from ops.runtime.errors import StartError, UsageError
from ops.runtime.gpus import shares
from ops.runtime.hub import model_name
from ops.runtime.settings import SHIPPED_DRAFT, SHIPPED_MODEL, named_redis

REDIS, BEHIND, FRONT = range(3)
"""Stages: the queue first, the gateway last; in the end the other way round."""

SHIPPED_MODEL_NAME = "quire-tiny"


@dataclass(frozen=True)
class Options:
    """The options of `quire up`. None: the services' own setting."""

    model: Path = SHIPPED_MODEL
    workers: int = 1
    port: int = 8000
    device: str | None = None
    dtype: str | None = None
    policy: str | None = None
    speculation: str | None = None

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        if name := os.environ.get("QUIRE_MODEL_NAME"):
            return name
        return SHIPPED_MODEL_NAME if self.model == SHIPPED_MODEL else model_name(self.model)

    @property
    def api_keys_file(self) -> str:
        """The file with the API keys; empty if none is needed."""
        return os.environ.get("QUIRE_API_KEYS_FILE", "")

    @property
    def keyed(self) -> bool:
        """Whether requests need a key, as far as this machine knows. Raises `LaunchError`."""
        return bool(self.api_keys_file) or kept(self.port) is not None

    @property
    def stop_seconds(self) -> float:
        """Time that answers under way get to end when the deployment is stopped: short, as a person waits.

        Raises `UsageError`.
        """
        given = os.environ.get("QUIRE_STOP_SECONDS", "5")
        try:
            return max(0.0, float(given))
        except ValueError:
            raise UsageError(f"QUIRE_STOP_SECONDS={given}: must be a number") from None

    @property
    def host(self) -> str:
        """The address that the gateway listens on."""
        return os.environ.get("QUIRE_HOST", "127.0.0.1")

    @property
    def url(self) -> str:
        """Where this machine reaches the gateway."""
        return url_from_here(self.host, self.port)


def check_model(directory: Path) -> None:
    """Raise `UsageError` unless the directory holds what a model consists of."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a model directory: there is no such directory")
    weights = "*.gguf" if any(directory.glob("*.gguf")) else "*.safetensors"
    for pattern in ("config.json", weights, "tokenizer.json"):
        if not any(directory.glob(pattern)):
            raise UsageError(f"{directory} is not a model directory: it has no {pattern}")


def check_open(options: Options) -> None:
    """Raise `UsageError` if the environment opens the API to a network without keys.

    What keys there are in a Redis of the operator's own, the gateway finds out.
    """
    try:
        GatewaySettings.read().check_open(options.keyed or bool(named_redis()))
    except StartError as error:
        raise UsageError(str(error)) from None


def own_key(options: Options) -> str:
    """An API key with which to ask for a first token; empty if none is needed. Raises `UsageError`."""
    if not options.api_keys_file:
        return ""
    try:
        return next(iter(read_keys(Path(options.api_keys_file))))
    except KeyFileError as error:
        raise UsageError(f"QUIRE_API_KEYS_FILE={error}") from None


def service_specs(options: Options, redis_urls: Mapping[str, str]) -> list[Spec]:
    """Our own processes, in the order in which they start. `redis_urls`: where each service finds Redis."""
    environment = {
        "QUIRE_MODEL": str(options.model),
        "QUIRE_MODEL_NAME": options.model_name,
        "QUIRE_HOST": options.host,
        "QUIRE_PORT": str(options.port),
        "QUIRE_STOP_SECONDS": f"{options.stop_seconds:g}",
    }
    if options.device is not None:
        environment["QUIRE_DEVICE"] = options.device
    if options.dtype is not None:
        environment["QUIRE_DTYPE"] = options.dtype
    if options.policy is not None:
        environment["QUIRE_POLICY"] = options.policy
    if options.speculation is not None:
        environment["QUIRE_SPECULATION"] = options.speculation
        if options.model == SHIPPED_MODEL and options.speculation == "draft":
            environment["QUIRE_DRAFT_MODEL"] = os.environ.get("QUIRE_DRAFT_MODEL", str(SHIPPED_DRAFT))

    def spec(name: str, package: str, stage: int = BEHIND, **more: str) -> Spec:
        url = redis_urls[name.partition("-")[0]]
        own = {**environment, "QUIRE_REDIS_URL": url, **more}
        return Spec(name, (sys.executable, "-m", package), stage, own)

    workers = [f"worker-{number}" for number in range(options.workers)] if options.workers > 1 else ["worker"]
    gpus = shares(options.workers)
    return [
        *(spec(name, "gpu_worker", BEHIND, **own) for name, own in zip(workers, gpus, strict=True)),
        spec("scheduler", "scheduler_svc"),
        spec("tokenizer", "tokenizer_svc"),
        spec("gateway", "gateway", FRONT),
    ]
