from proto import arrays_pb2 as _arrays_pb2
from proto import images_pb2 as _images_pb2
from proto import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerEvent(_message.Message):
    __slots__ = ("ready", "result", "compiled", "seen")
    READY_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    COMPILED_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    ready: WorkerReady
    result: StepResult
    compiled: int
    seen: int
    def __init__(self, ready: _Optional[_Union[WorkerReady, _Mapping]] = ..., result: _Optional[_Union[StepResult, _Mapping]] = ..., compiled: _Optional[int] = ..., seen: _Optional[int] = ...) -> None: ...

class WorkerReady(_message.Message):
    __slots__ = ("model", "num_blocks", "block_size", "max_slots", "max_model_len", "vocab_size", "max_step_tokens", "host_blocks", "swap_block_us", "token_us", "window", "can_draft", "embedding_size", "fingerprint", "num_labels", "bidirectional", "recurrent", "adapters", "images", "whole_images", "headless")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAP_BLOCK_US_FIELD_NUMBER: _ClassVar[int]
    TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    CAN_DRAFT_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUM_LABELS_FIELD_NUMBER: _ClassVar[int]
    BIDIRECTIONAL_FIELD_NUMBER: _ClassVar[int]
    RECURRENT_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_IMAGES_FIELD_NUMBER: _ClassVar[int]
    HEADLESS_FIELD_NUMBER: _ClassVar[int]
    model: str
    num_blocks: int
    block_size: int
    max_slots: int
    max_model_len: int
    vocab_size: int
    max_step_tokens: int
    host_blocks: int
    swap_block_us: float
    token_us: float
    window: int
    can_draft: bool
    embedding_size: int
    fingerprint: str
    num_labels: int
    bidirectional: bool
    recurrent: bool
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    images: bool
    whole_images: bool
    headless: bool
    def __init__(self, model: _Optional[str] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., max_slots: _Optional[int] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., host_blocks: _Optional[int] = ..., swap_block_us: _Optional[float] = ..., token_us: _Optional[float] = ..., window: _Optional[int] = ..., can_draft: _Optional[bool] = ..., embedding_size: _Optional[int] = ..., fingerprint: _Optional[str] = ..., num_labels: _Optional[int] = ..., bidirectional: _Optional[bool] = ..., recurrent: _Optional[bool] = ..., adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., images: _Optional[bool] = ..., whole_images: _Optional[bool] = ..., headless: _Optional[bool] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("step", "freed_slots", "dropped_grammars", "new_grammars", "new_slots", "table_cuts", "table_appends", "given_tokens", "swap_out", "swap_in", "copies", "rows", "draft_tokens", "prompt_rows")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FREED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    NEW_GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    NEW_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TABLE_CUTS_FIELD_NUMBER: _ClassVar[int]
    TABLE_APPENDS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUT_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ROWS_FIELD_NUMBER: _ClassVar[int]
    step: int
    freed_slots: bytes
    dropped_grammars: bytes
    new_grammars: _containers.RepeatedCompositeFieldContainer[NewGrammar]
    new_slots: _containers.RepeatedCompositeFieldContainer[NewSlot]
    table_cuts: TableCuts
    table_appends: TableAppends
    given_tokens: GivenTokens
    swap_out: SwapOut
    swap_in: SwapIn
    copies: Copies
    rows: Rows
    draft_tokens: bytes
    prompt_rows: PromptRows
    def __init__(self, step: _Optional[int] = ..., freed_slots: _Optional[bytes] = ..., dropped_grammars: _Optional[bytes] = ..., new_grammars: _Optional[_Iterable[_Union[NewGrammar, _Mapping]]] = ..., new_slots: _Optional[_Iterable[_Union[NewSlot, _Mapping]]] = ..., table_cuts: _Optional[_Union[TableCuts, _Mapping]] = ..., table_appends: _Optional[_Union[TableAppends, _Mapping]] = ..., given_tokens: _Optional[_Union[GivenTokens, _Mapping]] = ..., swap_out: _Optional[_Union[SwapOut, _Mapping]] = ..., swap_in: _Optional[_Union[SwapIn, _Mapping]] = ..., copies: _Optional[_Union[Copies, _Mapping]] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., draft_tokens: _Optional[bytes] = ..., prompt_rows: _Optional[_Union[PromptRows, _Mapping]] = ...) -> None: ...

class NewGrammar(_message.Message):
    __slots__ = ("number", "grammar")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    number: int
    grammar: _sampling_pb2.Grammar
    def __init__(self, number: _Optional[int] = ..., grammar: _Optional[_Union[_sampling_pb2.Grammar, _Mapping]] = ...) -> None: ...

class NewSlot(_message.Message):
    __slots__ = ("slot", "tokens", "prompt_length", "block_ids", "sampling", "sequence_index", "traceparent", "forked_tokens", "forked_from", "dropped_tokens", "candidates", "pooling", "grammar", "second_segment", "adapter", "images", "sight")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    FORKED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORKED_FROM_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    SECOND_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    SIGHT_FIELD_NUMBER: _ClassVar[int]
    slot: int
    tokens: bytes
    prompt_length: int
    block_ids: bytes
    sampling: _sampling_pb2.SamplingParams
    sequence_index: int
    traceparent: str
    forked_tokens: int
    forked_from: int
    dropped_tokens: int
    candidates: int
    pooling: _sampling_pb2.Pooling
    grammar: int
    second_segment: int
    adapter: str
    images: _containers.RepeatedCompositeFieldContainer[_images_pb2.PromptImage]
    sight: int
    def __init__(self, slot: _Optional[int] = ..., tokens: _Optional[bytes] = ..., prompt_length: _Optional[int] = ..., block_ids: _Optional[bytes] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., sequence_index: _Optional[int] = ..., traceparent: _Optional[str] = ..., forked_tokens: _Optional[int] = ..., forked_from: _Optional[int] = ..., dropped_tokens: _Optional[int] = ..., candidates: _Optional[int] = ..., pooling: _Optional[_Union[_sampling_pb2.Pooling, str]] = ..., grammar: _Optional[int] = ..., second_segment: _Optional[int] = ..., adapter: _Optional[str] = ..., images: _Optional[_Iterable[_Union[_images_pb2.PromptImage, _Mapping]]] = ..., sight: _Optional[int] = ...) -> None: ...

class TableCuts(_message.Message):
    __slots__ = ("slots", "lengths")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    slots: bytes
    lengths: bytes
    def __init__(self, slots: _Optional[bytes] = ..., lengths: _Optional[bytes] = ...) -> None: ...

class TableAppends(_message.Message):
    __slots__ = ("slots", "blocks")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    slots: bytes
    blocks: bytes
    def __init__(self, slots: _Optional[bytes] = ..., blocks: _Optional[bytes] = ...) -> None: ...

class GivenTokens(_message.Message):
    __slots__ = ("slots", "tokens")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    slots: bytes
    tokens: bytes
    def __init__(self, slots: _Optional[bytes] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class SwapOut(_message.Message):
    __slots__ = ("blocks", "host_slots")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOST_SLOTS_FIELD_NUMBER: _ClassVar[int]
    blocks: bytes
    host_slots: bytes
    def __init__(self, blocks: _Optional[bytes] = ..., host_slots: _Optional[bytes] = ...) -> None: ...

class SwapIn(_message.Message):
    __slots__ = ("host_slots", "blocks")
    HOST_SLOTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    host_slots: bytes
    blocks: bytes
    def __init__(self, host_slots: _Optional[bytes] = ..., blocks: _Optional[bytes] = ...) -> None: ...

class Copies(_message.Message):
    __slots__ = ("sources", "targets")
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    sources: bytes
    targets: bytes
    def __init__(self, sources: _Optional[bytes] = ..., targets: _Optional[bytes] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("slots", "starts", "counts", "samples")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    slots: bytes
    starts: bytes
    counts: bytes
    samples: bytes
    def __init__(self, slots: _Optional[bytes] = ..., starts: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., samples: _Optional[bytes] = ...) -> None: ...

class PromptRows(_message.Message):
    __slots__ = ("rows", "firsts", "counts")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    firsts: bytes
    counts: bytes
    def __init__(self, rows: _Optional[bytes] = ..., firsts: _Optional[bytes] = ..., counts: _Optional[bytes] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step", "tokens", "logprobs", "candidates", "embeddings", "errors", "duration_us", "prompt_logprobs", "forced")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    step: int
    tokens: bytes
    logprobs: Logprobs
    candidates: Candidates
    embeddings: Embeddings
    errors: _containers.RepeatedCompositeFieldContainer[RowError]
    duration_us: int
    prompt_logprobs: PromptLogprobs
    forced: Forced
    def __init__(self, step: _Optional[int] = ..., tokens: _Optional[bytes] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ..., candidates: _Optional[_Union[Candidates, _Mapping]] = ..., embeddings: _Optional[_Union[Embeddings, _Mapping]] = ..., errors: _Optional[_Iterable[_Union[RowError, _Mapping]]] = ..., duration_us: _Optional[int] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ..., forced: _Optional[_Union[Forced, _Mapping]] = ...) -> None: ...

class Forced(_message.Message):
    __slots__ = ("runs", "tokens")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    runs: ForcedRuns
    tokens: bytes
    def __init__(self, runs: _Optional[_Union[ForcedRuns, _Mapping]] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class ForcedRuns(_message.Message):
    __slots__ = ("rows", "starts", "counts")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    starts: bytes
    counts: bytes
    def __init__(self, rows: _Optional[bytes] = ..., starts: _Optional[bytes] = ..., counts: _Optional[bytes] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("rows", "logprobs", "ranks", "top")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    rows: ReportedRows
    logprobs: bytes
    ranks: bytes
    top: RankedTokens
    def __init__(self, rows: _Optional[_Union[ReportedRows, _Mapping]] = ..., logprobs: _Optional[bytes] = ..., ranks: _Optional[bytes] = ..., top: _Optional[_Union[RankedTokens, _Mapping]] = ...) -> None: ...

class ReportedRows(_message.Message):
    __slots__ = ("rows", "counts", "alternatives")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    counts: bytes
    alternatives: bytes
    def __init__(self, rows: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., alternatives: _Optional[bytes] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("entries", "logprobs", "top_counts", "top")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    entries: bytes
    logprobs: bytes
    top_counts: bytes
    top: RankedTokens
    def __init__(self, entries: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., top_counts: _Optional[bytes] = ..., top: _Optional[_Union[RankedTokens, _Mapping]] = ...) -> None: ...

class Candidates(_message.Message):
    __slots__ = ("entries", "counts", "top")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    entries: bytes
    counts: bytes
    top: RankedTokens
    def __init__(self, entries: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., top: _Optional[_Union[RankedTokens, _Mapping]] = ...) -> None: ...

class RankedTokens(_message.Message):
    __slots__ = ("tokens", "logprobs")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    logprobs: bytes
    def __init__(self, tokens: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ...) -> None: ...

class Embeddings(_message.Message):
    __slots__ = ("rows", "vectors", "counts")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    vectors: bytes
    counts: bytes
    def __init__(self, rows: _Optional[bytes] = ..., vectors: _Optional[bytes] = ..., counts: _Optional[bytes] = ...) -> None: ...

class RowError(_message.Message):
    __slots__ = ("row", "message", "grammar")
    ROW_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    row: int
    message: str
    grammar: bool
    def __init__(self, row: _Optional[int] = ..., message: _Optional[str] = ..., grammar: _Optional[bool] = ...) -> None: ...
