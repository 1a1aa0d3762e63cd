"""Settings that every process has, and how a process reads them.

Settings come from `QUIRE_*` environment variables into one frozen, validated object per process.
A service adds its own in `<service>/settings.py` by subclassing `ProcessSettings`.
"""

import os
import sys
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from redis.asyncio.connection import parse_url

from ops.runtime.errors import UsageError
from proto.redis_url import Sentinels

REDIS_URL = "QUIRE_REDIS_URL"
_NO_URL = (
    "is no URL of Redis, such as redis://127.0.0.1:6379/0; "
    "within a password #, /, ?, @ and : stand as %23, %2F, %3F, %40 and %3A"
)
LEAST_SECRET = 32
"""Characters: as hexadecimal digits they are 128 bits."""


class ProcessSettings(BaseSettings):
    """What every process of a deployment must know."""

    model_config = SettingsConfigDict(env_prefix="QUIRE_", frozen=True, extra="ignore", env_ignore_empty=True)

    redis_url: str = "redis://127.0.0.1:6379/0"
    """The Redis that carries the streams; it knows of the CA that `redis_ca_file` has."""

    redis_url_file: Path | None = None
    """File with the URL, which takes the place of `redis_url`."""

    redis_ca_file: Path | None = None
    """Certificates of those who may certify a Redis over TLS. None: those that the system trusts."""

    secret_file: Path | None = None
    """File with what the deployment's processes know and nobody else: entries that were written without it
    are refused. None: whoever may write to the Redis is trusted."""

    stream_prefix: str = "quire:"
    """Prefix of every key, so that deployments can share a Redis."""

    lease_seconds: float = Field(3.0, ge=0.3, le=60)
    """A process that has not renewed its lease for this long counts as dead."""

    stop_seconds: float = Field(25.0, ge=0, le=3600)
    """Time that what runs gets to end once the process is asked to stop. Seconds."""

    otlp_endpoint: str = ""
    """Where spans go (OTLP over gRPC, e.g. `http://127.0.0.1:4317`). Empty: no traces."""

    trace_rate: float = Field(1.0, ge=0, le=1)
    """Part of the requests that are traced. One that comes with a `traceparent` follows that."""

    trace_tenants: str = ""
    """Names of API keys whose requests are all traced, with commas between them."""

    trace_slow_seconds: float = Field(5.0, ge=0)
    """Of requests that are not traced otherwise, those that wait this long for their first or next token are,
    and those that fail. Seconds. 0: none are."""

    metrics_address: str = Field("", pattern=r"^(|.+:\d{1,5})$")
    """Where this process shows its own metrics over HTTP, and a gateway those of all, as in `127.0.0.1:9101`;
    port 0 takes a free one, which the lease names. Empty: nowhere but at the gateway."""

    log_level: str = Field("INFO", pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")

    log_format: str = Field("text", pattern=r"^(text|json)$")
    """What an entry of the log is: a line for people, or a JSON object."""

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, values: dict[str, Any]) -> dict[str, Any]:
        if path := values.get("redis_url_file"):
            values["redis_url"] = _read("QUIRE_REDIS_URL_FILE", Path(path))
        if path := values.get("redis_ca_file"):
            url = values.get("redis_url", "")
            if not url.startswith(("rediss://", "rediss+sentinel://")):
                raise ValueError(
                    "QUIRE_REDIS_CA_FILE is for a Redis over TLS, whose URL begins with rediss://"
                )
            _read("QUIRE_REDIS_CA_FILE", Path(path))
            values["redis_url"] = f"{url}{'&' if '?' in url else '?'}{urlencode({'ssl_ca_certs': path})}"
        if path := values.get("secret_file"):
            secret = _read("QUIRE_SECRET_FILE", Path(path))
            if len(secret) < LEAST_SECRET:
                raise ValueError(f"QUIRE_SECRET_FILE={path}: has less than {LEAST_SECRET} characters")
        return values

    @field_validator("redis_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        try:
            sentinels = Sentinels.of(url)
            server = url if sentinels is None else sentinels.server
            parse_url(server)
            parts = urlsplit(server)
        except (ValueError, TypeError):
            raise ValueError(_NO_URL) from None
        # A fragment, and an @ behind the host, are of a password that was not quoted.
        own = server.startswith(("redis://", "rediss://", "unix://"))
        if not own or parts.fragment or (parts.scheme != "unix" and "@" in parts.path):
            raise ValueError(_NO_URL)
        return url

    @property
    def secret(self) -> bytes:
        """The deployment's secret; empty if it has none."""
        return _read("QUIRE_SECRET_FILE", self.secret_file).encode() if self.secret_file else b""

    @classmethod
    def read(cls) -> Self:
        """Read the environment. Raises `UsageError` with a line for each bad value."""
        try:
            return cls()
        except ValidationError as error:
            raise UsageError("\n".join(problems(error))) from None

    @classmethod
    def from_environment(cls) -> Self:
        """Read the environment; on a bad value print one line that names it and exit with status 2."""
        try:
            return cls.read()
        except UsageError as error:
            print(error, file=sys.stderr)
            raise SystemExit(2) from None


def problems(error: ValidationError) -> list[str]:
    """What is wrong with the environment, a line for each setting."""
    lines = []
    for problem in error.errors():
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"].startswith("byte_size"):
            reason = "is no size, such as 512MiB or 4GiB"
        name = "QUIRE_" + "_".join(str(part) for part in problem["loc"]).upper()
        value = "" if name == REDIS_URL else f"={os.environ.get(name, '')}"  # it may have a password
        lines.append(f"{name}{value}: {reason}" if problem["loc"] else reason)
    return lines


def named_redis() -> str | None:
    """URL of the Redis that the environment names; None if it names none. Raises `UsageError`."""
    if not (os.environ.get("QUIRE_REDIS_URL") or os.environ.get("QUIRE_REDIS_URL_FILE")):
        return None
    return ProcessSettings.read().redis_url


def stream_prefix() -> str:
    """Prefix of every key, as `ProcessSettings` reads it."""
    return os.environ.get("QUIRE_STREAM_PREFIX") or "quire:"


def _read(name: str, path: Path) -> str:
    """The one line that a file holds. Raises `ValueError`."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise ValueError(f"{name}={path}: {reason}") from None
