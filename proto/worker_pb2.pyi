from proto import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerEvent(_message.Message):
    __slots__ = ("ready", "result")
    READY_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ready: WorkerReady
    result: StepResult
    def __init__(self, ready: _Optional[_Union[WorkerReady, _Mapping]] = ..., result: _Optional[_Union[StepResult, _Mapping]] = ...) -> None: ...

class WorkerReady(_message.Message):
    __slots__ = ("model", "num_blocks", "block_size", "max_slots", "max_model_len", "vocab_size", "max_step_tokens", "can_draft", "host_blocks", "swap_block_us", "token_us", "window", "embedding_size")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CAN_DRAFT_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAP_BLOCK_US_FIELD_NUMBER: _ClassVar[int]
    TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    model: str
    num_blocks: int
    block_size: int
    max_slots: int
    max_model_len: int
    vocab_size: int
    max_step_tokens: int
    can_draft: bool
    host_blocks: int
    swap_block_us: float
    token_us: float
    window: int
    embedding_size: int
    def __init__(self, model: _Optional[str] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., max_slots: _Optional[int] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., can_draft: _Optional[bool] = ..., host_blocks: _Optional[int] = ..., swap_block_us: _Optional[float] = ..., token_us: _Optional[float] = ..., window: _Optional[int] = ..., embedding_size: _Optional[int] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("step", "freed_slots", "new_slots", "block_slots", "block_ids", "row_slots", "row_starts", "row_counts", "swap_out_blocks", "swap_out_slots", "swap_in_slots", "swap_in_blocks", "copy_sources", "copy_targets", "given_slots", "given_tokens", "row_samples", "draft_tokens", "cut_slots", "cut_blocks")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FREED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    NEW_SLOTS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SLOTS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    ROW_SLOTS_FIELD_NUMBER: _ClassVar[int]
    ROW_STARTS_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNTS_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COPY_SOURCES_FIELD_NUMBER: _ClassVar[int]
    COPY_TARGETS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_SLOTS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROW_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CUT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    CUT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    step: int
    freed_slots: bytes
    new_slots: _containers.RepeatedCompositeFieldContainer[NewSlot]
    block_slots: bytes
    block_ids: bytes
    row_slots: bytes
    row_starts: bytes
    row_counts: bytes
    swap_out_blocks: bytes
    swap_out_slots: bytes
    swap_in_slots: bytes
    swap_in_blocks: bytes
    copy_sources: bytes
    copy_targets: bytes
    given_slots: bytes
    given_tokens: bytes
    row_samples: bytes
    draft_tokens: bytes
    cut_slots: bytes
    cut_blocks: bytes
    def __init__(self, step: _Optional[int] = ..., freed_slots: _Optional[bytes] = ..., new_slots: _Optional[_Iterable[_Union[NewSlot, _Mapping]]] = ..., block_slots: _Optional[bytes] = ..., block_ids: _Optional[bytes] = ..., row_slots: _Optional[bytes] = ..., row_starts: _Optional[bytes] = ..., row_counts: _Optional[bytes] = ..., swap_out_blocks: _Optional[bytes] = ..., swap_out_slots: _Optional[bytes] = ..., swap_in_slots: _Optional[bytes] = ..., swap_in_blocks: _Optional[bytes] = ..., copy_sources: _Optional[bytes] = ..., copy_targets: _Optional[bytes] = ..., given_slots: _Optional[bytes] = ..., given_tokens: _Optional[bytes] = ..., row_samples: _Optional[bytes] = ..., draft_tokens: _Optional[bytes] = ..., cut_slots: _Optional[bytes] = ..., cut_blocks: _Optional[bytes] = ...) -> None: ...

class NewSlot(_message.Message):
    __slots__ = ("slot", "tokens", "prompt_length", "block_ids", "sampling", "sequence_index", "traceparent", "forked_tokens", "forked_from", "candidates", "dropped_tokens", "pooling")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    FORKED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORKED_FROM_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    slot: int
    tokens: bytes
    prompt_length: int
    block_ids: bytes
    sampling: _sampling_pb2.SamplingParams
    sequence_index: int
    traceparent: str
    forked_tokens: int
    forked_from: int
    candidates: int
    dropped_tokens: int
    pooling: _sampling_pb2.Pooling
    def __init__(self, slot: _Optional[int] = ..., tokens: _Optional[bytes] = ..., prompt_length: _Optional[int] = ..., block_ids: _Optional[bytes] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., sequence_index: _Optional[int] = ..., traceparent: _Optional[str] = ..., forked_tokens: _Optional[int] = ..., forked_from: _Optional[int] = ..., candidates: _Optional[int] = ..., dropped_tokens: _Optional[int] = ..., pooling: _Optional[_Union[_sampling_pb2.Pooling, str]] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step", "tokens", "logprob_entries", "logprobs", "top_counts", "top_tokens", "top_logprobs", "errors", "candidate_entries", "candidate_counts", "candidate_tokens", "candidate_logprobs", "embedded_rows", "embeddings", "duration_us")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDED_ROWS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    step: int
    tokens: bytes
    logprob_entries: bytes
    logprobs: bytes
    top_counts: bytes
    top_tokens: bytes
    top_logprobs: bytes
    errors: _containers.RepeatedCompositeFieldContainer[RowError]
    candidate_entries: bytes
    candidate_counts: bytes
    candidate_tokens: bytes
    candidate_logprobs: bytes
    embedded_rows: bytes
    embeddings: bytes
    duration_us: int
    def __init__(self, step: _Optional[int] = ..., tokens: _Optional[bytes] = ..., logprob_entries: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., top_counts: _Optional[bytes] = ..., top_tokens: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ..., errors: _Optional[_Iterable[_Union[RowError, _Mapping]]] = ..., candidate_entries: _Optional[bytes] = ..., candidate_counts: _Optional[bytes] = ..., candidate_tokens: _Optional[bytes] = ..., candidate_logprobs: _Optional[bytes] = ..., embedded_rows: _Optional[bytes] = ..., embeddings: _Optional[bytes] = ..., duration_us: _Optional[int] = ...) -> None: ...

class RowError(_message.Message):
    __slots__ = ("row", "message")
    ROW_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    row: int
    message: str
    def __init__(self, row: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
