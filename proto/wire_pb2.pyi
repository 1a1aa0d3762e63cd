from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    OPEN: _ClassVar[Kind]
    ACCEPT: _ClassVar[Kind]
    MESSAGE: _ClassVar[Kind]
    HALF_CLOSE: _ClassVar[Kind]
    STATUS: _ClassVar[Kind]
    CANCEL: _ClassVar[Kind]
    PROBE: _ClassVar[Kind]
    GONE: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
OPEN: Kind
ACCEPT: Kind
MESSAGE: Kind
HALF_CLOSE: Kind
STATUS: Kind
CANCEL: Kind
PROBE: Kind
GONE: Kind

class Entry(_message.Message):
    __slots__ = ("sender", "epoch", "requests", "responses")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    sender: str
    epoch: int
    requests: _containers.RepeatedCompositeFieldContainer[Frame]
    responses: _containers.RepeatedCompositeFieldContainer[Frame]
    def __init__(self, sender: _Optional[str] = ..., epoch: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., responses: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("call", "seq", "kind", "body", "open", "status", "metadata")
    CALL_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    call: int
    seq: int
    kind: Kind
    body: bytes
    open: Open
    status: Status
    metadata: _containers.RepeatedCompositeFieldContainer[Metadatum]
    def __init__(self, call: _Optional[int] = ..., seq: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., body: _Optional[bytes] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., metadata: _Optional[_Iterable[_Union[Metadatum, _Mapping]]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("method", "protocol", "timeout")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    method: str
    protocol: int
    timeout: float
    def __init__(self, method: _Optional[str] = ..., protocol: _Optional[int] = ..., timeout: _Optional[float] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    details: str
    def __init__(self, code: _Optional[int] = ..., details: _Optional[str] = ...) -> None: ...

class Metadatum(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
