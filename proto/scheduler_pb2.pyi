from proto import arrays_pb2 as _arrays_pb2
from proto import images_pb2 as _images_pb2
from proto import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EmbedTokensRequest(_message.Message):
    __slots__ = ("request_id", "tokens", "pooling", "second_segment", "dimensions", "cache_salt", "tenant", "user", "priority", "adapter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    SECOND_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tokens: bytes
    pooling: _sampling_pb2.Pooling
    second_segment: int
    dimensions: int
    cache_salt: str
    tenant: str
    user: str
    priority: int
    adapter: str
    def __init__(self, request_id: _Optional[str] = ..., tokens: _Optional[bytes] = ..., pooling: _Optional[_Union[_sampling_pb2.Pooling, str]] = ..., second_segment: _Optional[int] = ..., dimensions: _Optional[int] = ..., cache_salt: _Optional[str] = ..., tenant: _Optional[str] = ..., user: _Optional[str] = ..., priority: _Optional[int] = ..., adapter: _Optional[str] = ...) -> None: ...

class EmbedTokensResponse(_message.Message):
    __slots__ = ("embedding",)
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    embedding: bytes
    def __init__(self, embedding: _Optional[bytes] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("start", "end_sequence", "resumed")
    START_FIELD_NUMBER: _ClassVar[int]
    END_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    start: Start
    end_sequence: int
    resumed: SequenceSoFar
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., end_sequence: _Optional[int] = ..., resumed: _Optional[_Union[SequenceSoFar, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("request_id", "prompt_tokens", "sampling", "stop", "n", "cache_salt", "resumed", "more_resumed", "fingerprint", "tenant", "user", "priority", "beams", "rolling_context", "scored_tokens", "predicted_tokens", "adapter", "images")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    MORE_RESUMED_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    BEAMS_FIELD_NUMBER: _ClassVar[int]
    ROLLING_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SCORED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_tokens: bytes
    sampling: _sampling_pb2.SamplingParams
    stop: _sampling_pb2.StopConditions
    n: int
    cache_salt: str
    resumed: _containers.RepeatedCompositeFieldContainer[SequenceSoFar]
    more_resumed: int
    fingerprint: str
    tenant: str
    user: str
    priority: int
    beams: _sampling_pb2.BeamSearch
    rolling_context: bool
    scored_tokens: int
    predicted_tokens: bytes
    adapter: str
    images: _containers.RepeatedCompositeFieldContainer[_images_pb2.PromptImage]
    def __init__(self, request_id: _Optional[str] = ..., prompt_tokens: _Optional[bytes] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., stop: _Optional[_Union[_sampling_pb2.StopConditions, _Mapping]] = ..., n: _Optional[int] = ..., cache_salt: _Optional[str] = ..., resumed: _Optional[_Iterable[_Union[SequenceSoFar, _Mapping]]] = ..., more_resumed: _Optional[int] = ..., fingerprint: _Optional[str] = ..., tenant: _Optional[str] = ..., user: _Optional[str] = ..., priority: _Optional[int] = ..., beams: _Optional[_Union[_sampling_pb2.BeamSearch, _Mapping]] = ..., rolling_context: _Optional[bool] = ..., scored_tokens: _Optional[int] = ..., predicted_tokens: _Optional[bytes] = ..., adapter: _Optional[str] = ..., images: _Optional[_Iterable[_Union[_images_pb2.PromptImage, _Mapping]]] = ...) -> None: ...

class SequenceSoFar(_message.Message):
    __slots__ = ("index", "tokens", "finished")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    index: int
    tokens: bytes
    finished: bool
    def __init__(self, index: _Optional[int] = ..., tokens: _Optional[bytes] = ..., finished: _Optional[bool] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("deltas", "cached_tokens", "fingerprint", "prompt", "predicted")
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[SequenceDelta]
    cached_tokens: int
    fingerprint: str
    prompt: PromptScores
    predicted: _sampling_pb2.PredictedTokens
    def __init__(self, deltas: _Optional[_Iterable[_Union[SequenceDelta, _Mapping]]] = ..., cached_tokens: _Optional[int] = ..., fingerprint: _Optional[str] = ..., prompt: _Optional[_Union[PromptScores, _Mapping]] = ..., predicted: _Optional[_Union[_sampling_pb2.PredictedTokens, _Mapping]] = ...) -> None: ...

class PromptScores(_message.Message):
    __slots__ = ("logprobs", "ranks", "top_tokens", "top_logprobs")
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprobs: bytes
    ranks: bytes
    top_tokens: bytes
    top_logprobs: bytes
    def __init__(self, logprobs: _Optional[bytes] = ..., ranks: _Optional[bytes] = ..., top_tokens: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ...) -> None: ...

class SequenceDelta(_message.Message):
    __slots__ = ("index", "tokens", "finish_reason", "logprobs")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    index: int
    tokens: bytes
    finish_reason: _sampling_pb2.FinishReason
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, index: _Optional[int] = ..., tokens: _Optional[bytes] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_tokens", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_tokens: bytes
    top_logprobs: bytes
    def __init__(self, logprob: _Optional[float] = ..., top_tokens: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ...) -> None: ...
