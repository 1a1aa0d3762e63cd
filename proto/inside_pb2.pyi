from proto import arrays_pb2 as _arrays_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ("schedulers",)
    SCHEDULERS_FIELD_NUMBER: _ClassVar[int]
    schedulers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, schedulers: _Optional[_Iterable[str]] = ...) -> None: ...

class Look(_message.Message):
    __slots__ = ("scheduler", "workers", "lost", "totals")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerChange]
    lost: _containers.RepeatedScalarFieldContainer[int]
    totals: Totals
    def __init__(self, scheduler: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerChange, _Mapping]]] = ..., lost: _Optional[_Iterable[int]] = ..., totals: _Optional[_Union[Totals, _Mapping]] = ...) -> None: ...

class Totals(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "preemptions", "drafts", "drafts_held", "waiting")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_HELD_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    drafts: int
    drafts_held: int
    waiting: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., drafts: _Optional[int] = ..., drafts_held: _Optional[int] = ..., waiting: _Optional[int] = ...) -> None: ...

class WorkerChange(_message.Message):
    __slots__ = ("number", "limits", "blocks", "states", "evicted", "host_used", "sequences", "gone", "steps")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    HOST_USED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    number: int
    limits: Limits
    blocks: bytes
    states: bytes
    evicted: bytes
    host_used: int
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceChange]
    gone: _containers.RepeatedScalarFieldContainer[int]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    def __init__(self, number: _Optional[int] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., blocks: _Optional[bytes] = ..., states: _Optional[bytes] = ..., evicted: _Optional[bytes] = ..., host_used: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[SequenceChange, _Mapping]]] = ..., gone: _Optional[_Iterable[int]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("blocks", "block_size", "host_blocks", "slots", "step_tokens")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    block_size: int
    host_blocks: int
    slots: int
    step_tokens: int
    def __init__(self, blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., host_blocks: _Optional[int] = ..., slots: _Optional[int] = ..., step_tokens: _Optional[int] = ...) -> None: ...

class SequenceChange(_message.Message):
    __slots__ = ("number", "request_id", "index", "tenant", "user", "trace_id", "prompt_tokens", "limit", "state", "cached_tokens", "computed", "tokens", "kept_blocks", "added_blocks", "dropped_blocks", "kept_tokens", "added_tokens")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ADDED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KEPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    number: int
    request_id: str
    index: int
    tenant: str
    user: str
    trace_id: str
    prompt_tokens: int
    limit: int
    state: str
    cached_tokens: int
    computed: int
    tokens: int
    kept_blocks: int
    added_blocks: bytes
    dropped_blocks: int
    kept_tokens: int
    added_tokens: bytes
    def __init__(self, number: _Optional[int] = ..., request_id: _Optional[str] = ..., index: _Optional[int] = ..., tenant: _Optional[str] = ..., user: _Optional[str] = ..., trace_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., limit: _Optional[int] = ..., state: _Optional[str] = ..., cached_tokens: _Optional[int] = ..., computed: _Optional[int] = ..., tokens: _Optional[int] = ..., kept_blocks: _Optional[int] = ..., added_blocks: _Optional[bytes] = ..., dropped_blocks: _Optional[int] = ..., kept_tokens: _Optional[int] = ..., added_tokens: _Optional[bytes] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("number", "decodes", "chunks", "prompt_tokens", "drafts", "drafts_held", "sampled", "budget", "duration_us", "admitted", "forked", "copied_from", "copied_to", "swapped_out", "swapped_in")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DECODES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_HELD_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    FORKED_FIELD_NUMBER: _ClassVar[int]
    COPIED_FROM_FIELD_NUMBER: _ClassVar[int]
    COPIED_TO_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_OUT_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_IN_FIELD_NUMBER: _ClassVar[int]
    number: int
    decodes: int
    chunks: int
    prompt_tokens: int
    drafts: int
    drafts_held: int
    sampled: int
    budget: int
    duration_us: int
    admitted: int
    forked: int
    copied_from: bytes
    copied_to: bytes
    swapped_out: bytes
    swapped_in: bytes
    def __init__(self, number: _Optional[int] = ..., decodes: _Optional[int] = ..., chunks: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., drafts: _Optional[int] = ..., drafts_held: _Optional[int] = ..., sampled: _Optional[int] = ..., budget: _Optional[int] = ..., duration_us: _Optional[int] = ..., admitted: _Optional[int] = ..., forked: _Optional[int] = ..., copied_from: _Optional[bytes] = ..., copied_to: _Optional[bytes] = ..., swapped_out: _Optional[bytes] = ..., swapped_in: _Optional[bytes] = ...) -> None: ...
