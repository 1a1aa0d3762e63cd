"""What clients get of the gateway's health, for the OpenAPI document alone."""

from typing import Literal

from pydantic import Field

from gateway.api.common.answers import AnswerPart


class Liveness(AnswerPart):
    """The answer of GET /health/live."""

    status: Literal["live"]


class Load(AnswerPart):
    """The answer of GET /load."""

    server_load: int = Field(description="Requests for models that have not been answered.")


class Version(AnswerPart):
    """The answer of GET /version."""

    version: str


class Readiness(AnswerPart):
    """The answer of GET /health/ready."""

    status: Literal["ready", "not ready", "stopping"]
    models: list[str]
    missing: list[str] = Field(
        [],
        description="What does not run: services of models that were seen, or the message queue; "
        "`progress` of a model whose workers all hang in a step.",
    )


HEALTH = (Liveness, Load, Version, Readiness)
