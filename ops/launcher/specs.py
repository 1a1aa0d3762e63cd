"""Which processes a deployment has, and with which settings each is started."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.settings import GatewaySettings
from ops.kv_memory import ModelFilesError, loaded_bytes
from ops.launcher.kept_keys import kept
from ops.launcher.served import Served
from ops.model_directory.lora_modules import written
from ops.model_directory.settings import SHIPPED_DRAFT, SHIPPED_MODEL, SHIPPED_PREDICTOR
from ops.runtime.address import url_from_here
from ops.runtime.api_keys import KeyFileError, read_keys
from ops.runtime.child import Spec
from ops.runtime.errors import StartError, UsageError
from ops.runtime.gpus import shares, used
from ops.runtime.settings import named_redis

REDIS, BEHIND, FRONT = range(3)
"""Stages: the queue first, the gateway last; in the end the other way round."""
GPU_IMAGE_TOKENS = 4096
"""QUIRE_IMAGE_TOKENS where workers compute on GPUs. A vision tower on a CPU would take a minute for them."""


@dataclass(frozen=True)
class Options:
    """The options of `quire up`. None: the services' own setting."""

    models: tuple[Served, ...] = (Served(),)
    workers: int = 1
    """Workers of each model."""
    port: int = 8000
    device: str | None = None
    dtype: str | None = None
    policy: str | None = None
    speculation: str | None = None
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """Directories of LoRA adapters by name."""

    @property
    def model_names(self) -> list[str]:
        """The names under which the models are served."""
        return [model.name for model in self.models]

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
        given = os.environ.get("QUIRE_STOP_SECONDS") or "5"
        try:
            return max(0.0, float(given))
        except ValueError:
            raise UsageError(f"QUIRE_STOP_SECONDS={given}: must be a number") from None

    @property
    def host(self) -> str:
        """The address that the gateway listens on."""
        return os.environ.get("QUIRE_HOST") or "127.0.0.1"

    @property
    def url(self) -> str:
        """Where this machine reaches the gateway."""
        return url_from_here(self.host, self.port)


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
    common = {
        "QUIRE_HOST": options.host,
        "QUIRE_PORT": str(options.port),
        "QUIRE_STOP_SECONDS": f"{options.stop_seconds:g}",
        "OTEL_PROPAGATORS": "tracecontext",  # who set others set them for other programs; they stop ours
        **own_code(),
    }
    device = options.device or os.environ.get("QUIRE_DEVICE")
    large = used(device) and not os.environ.get("QUIRE_IMAGE_TOKENS")
    chosen = {
        "QUIRE_IMAGE_TOKENS": str(GPU_IMAGE_TOKENS) if large else None,
        "QUIRE_DEVICE": options.device,
        "QUIRE_DTYPE": options.dtype,
        "QUIRE_POLICY": options.policy,
        "QUIRE_SPECULATION": options.speculation,
        "QUIRE_LORA_MODULES": written(options.adapters) if options.adapters else None,
    }
    common |= {name: value for name, value in chosen.items() if value is not None}

    def spec(name: str, package: str, stage: int, environment: Mapping[str, str]) -> Spec:
        url = redis_urls[name.partition("-")[0]]
        return Spec(name, (sys.executable, "-m", package), stage, {**environment, "QUIRE_REDIS_URL": url})

    gpus = iter(shares(options.workers * len(options.models), device, lambda: _weights(options)))
    specs = []
    for model in options.models:
        environment = common | _settings_of(model, options)
        of_model = f"-{model.name}" if len(options.models) > 1 else ""
        for number in range(options.workers):
            name = f"worker{of_model}" + (f"-{number}" if options.workers > 1 else "")
            specs.append(spec(name, "gpu_worker", BEHIND, environment | next(gpus)))
        specs.append(spec(f"scheduler{of_model}", "scheduler_svc", BEHIND, environment))
        specs.append(spec(f"tokenizer{of_model}", "tokenizer_svc", BEHIND, environment))
    return [*specs, spec("gateway", "gateway", FRONT, common)]


def own_code() -> dict[str, str]:
    """Settings of Python with which a process runs this code, and none that lies in its working directory.

    That may be anybody's: a `gateway.py` or `redis.py` there would be imported instead.
    """
    root, given = Path(__file__).parents[2], os.environ.get("PYTHONPATH")
    checkout = str(root) if (root / "pyproject.toml").is_file() else None  # which need not be installed
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, (given, checkout)))}


def _weights(options: Options) -> list[int]:
    """Bytes of each worker's weights; nothing if the files of a model do not tell."""
    try:
        sizes = [loaded_bytes(model.path) for model in options.models]
    except ModelFilesError:
        return []
    return [size for size in sizes for _ in range(options.workers)]


def memory_shares(specs: Sequence[Spec]) -> str:
    """Which part of a device's memory each worker has, in words; empty if none shares a device, or if the
    operator has said how much KV memory each has."""
    if os.environ.get("QUIRE_KV_MEMORY"):
        return ""
    parts = {spec.name: spec.environment.get("QUIRE_MEMORY_SHARE") for spec in specs}
    told = [f"{name} {100 * float(part):.0f} %" for name, part in parts.items() if part]
    return ", ".join(told) if len(told) > 1 else ""


def _settings_of(model: Served, options: Options) -> dict[str, str]:
    """What the processes of a model are started with."""
    own = {"QUIRE_MODEL": str(model.path), "QUIRE_MODEL_NAME": model.name}
    shipped = {"draft": SHIPPED_DRAFT, "mtp": SHIPPED_PREDICTOR}.get(options.speculation or "")
    if shipped is not None and model.path == SHIPPED_MODEL:
        own["QUIRE_DRAFT_MODEL"] = os.environ.get("QUIRE_DRAFT_MODEL") or str(shipped)
    return own
