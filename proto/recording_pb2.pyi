from proto import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Recording(_message.Message):
    __slots__ = ("version", "reason", "ended", "worker", "state", "events")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    version: str
    reason: str
    ended: float
    worker: _worker_pb2.WorkerReady
    state: bytes
    events: _containers.RepeatedCompositeFieldContainer[RecordedEvent]
    def __init__(self, version: _Optional[str] = ..., reason: _Optional[str] = ..., ended: _Optional[float] = ..., worker: _Optional[_Union[_worker_pb2.WorkerReady, _Mapping]] = ..., state: _Optional[bytes] = ..., events: _Optional[_Iterable[_Union[RecordedEvent, _Mapping]]] = ...) -> None: ...

class RecordedEvent(_message.Message):
    __slots__ = ("at", "submitted", "cancelled", "ended", "withdrew", "evacuated", "compiled", "planned", "result", "idle", "seen")
    AT_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    WITHDREW_FIELD_NUMBER: _ClassVar[int]
    EVACUATED_FIELD_NUMBER: _ClassVar[int]
    COMPILED_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    at: float
    submitted: bytes
    cancelled: int
    ended: EndedSequence
    withdrew: float
    evacuated: bool
    compiled: int
    planned: bytes
    result: bytes
    idle: int
    seen: int
    def __init__(self, at: _Optional[float] = ..., submitted: _Optional[bytes] = ..., cancelled: _Optional[int] = ..., ended: _Optional[_Union[EndedSequence, _Mapping]] = ..., withdrew: _Optional[float] = ..., evacuated: _Optional[bool] = ..., compiled: _Optional[int] = ..., planned: _Optional[bytes] = ..., result: _Optional[bytes] = ..., idle: _Optional[int] = ..., seen: _Optional[int] = ...) -> None: ...

class EndedSequence(_message.Message):
    __slots__ = ("arrival", "index")
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    arrival: int
    index: int
    def __init__(self, arrival: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...
