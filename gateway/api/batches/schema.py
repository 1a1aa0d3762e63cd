"""Files and batches of OpenAI's API: their bodies and answers."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.api.common.answers import AnswerPart
from gateway.api.common.fields import at_most
from gateway.api.common.request_schema import BodyPart, RequestBody

_TIME = "Unix time, seconds."


class UploadBody(BaseModel):
    """POST /v1/files: the fields of a form."""

    model_config = ConfigDict(extra="allow")

    purpose: Literal["batch"]
    file: str = Field(json_schema_extra={"format": "binary"}, description="JSON Lines.")


class FileObject(AnswerPart):
    """What is known of a file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int = Field(description=_TIME)
    expires_at: int = Field(description=_TIME)
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class _List(AnswerPart):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileList(_List):
    """The answer of GET /v1/files."""

    data: list[FileObject]


class DeletedFile(AnswerPart):
    """The answer of DELETE /v1/files/{file_id}."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class ExpiresAfter(BodyPart):
    """How long a file is kept."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=30 * 86400)


class BatchBody(RequestBody):
    """POST /v1/batches."""

    ignored: ClassVar[frozenset[str]] = RequestBody.ignored - {"metadata"}
    for_model: ClassVar[bool] = False

    model: str = Field("", description="Without effect: each line names its own.")
    input_file_id: str = Field(min_length=1, max_length=64)
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: Literal["24h"]
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None,
        at_most(16),
    ] = Field(None, max_length=16, description="Given back with the batch.")
    output_expires_after: ExpiresAfter | None = None


class LineProblem(AnswerPart):
    """What is wrong with a line of the input."""

    code: str
    message: str
    param: str | None
    line: int | None


class LineProblems(AnswerPart):
    """Why a batch has failed."""

    object: Literal["list"]
    data: list[LineProblem]


class Counts(AnswerPart):
    """Lines of a batch."""

    total: int
    completed: int
    failed: int


class BatchObject(AnswerPart):
    """A batch."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: LineProblems | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal["validating", "failed", "in_progress", "completed", "expired", "cancelled"]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int = Field(description=_TIME)
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: Counts
    metadata: dict[str, Any] | None


class BatchList(_List):
    """The answer of GET /v1/batches."""

    data: list[BatchObject]


FILES: tuple[type[AnswerPart], ...] = (FileObject, FileList, DeletedFile, BatchObject, BatchList)
