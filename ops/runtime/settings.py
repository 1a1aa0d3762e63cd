"""Settings that every process has, and how a process reads them.

Settings come from `QUIRE_*` environment variables into one frozen, validated object per process.
A service adds its own in `<service>/settings.py` by subclassing `ProcessSettings`.
"""

import os
import sys
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from ops.runtime.hub import model_name

SHIPPED_MODEL = Path(__file__).parents[1] / "tiny_model" / "model"
SHIPPED_DRAFT = Path(__file__).parents[1] / "tiny_model" / "draft"


class ProcessSettings(BaseSettings):
    """What every process of a deployment must know."""

    model_config = SettingsConfigDict(env_prefix="QUIRE_", frozen=True, extra="ignore")

    redis_url: str = Field("redis://127.0.0.1:6379/0", pattern=r"^(rediss?|unix)://")
    """The Redis that carries the streams."""

    stream_prefix: str = "quire:"
    """Prefix of every key, so that deployments can share a Redis."""

    lease_seconds: float = Field(3.0, ge=0.3, le=60)
    """A process that has not renewed its lease for this long counts as dead."""

    otlp_endpoint: str = ""
    """Where spans go (OTLP over gRPC, e.g. `http://127.0.0.1:4317`). Empty: no traces."""

    log_level: str = Field("INFO", pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")

    @classmethod
    def from_environment(cls) -> Self:
        """Read the environment; on a bad value print one line that names it and exit with status 2."""
        try:
            return cls()
        except ValidationError as error:
            for problem in error.errors():
                name = "QUIRE_" + "_".join(str(part) for part in problem["loc"]).upper()
                print(f"{name}={os.environ.get(name, '')}: {problem['msg']}", file=sys.stderr)
            raise SystemExit(2) from None


class ModelSettings(ProcessSettings):
    """What every process of one model must know."""

    model: Path = SHIPPED_MODEL
    """Directory of the model, as Hugging Face lays it out, or its id there; see `hub.py`."""

    model_name: str = ""
    """Name under which the model is served. Empty: the name of its directory, or the last part of its id."""

    @property
    def served_name(self) -> str:
        """The pool that this process belongs to."""
        return self.model_name or model_name(self.model)
