from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ImageFile(_message.Message):
    __slots__ = ("name", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: bytes
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class PromptImage(_message.Message):
    __slots__ = ("file", "position", "tokens", "rows", "columns", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: ImageFile
    position: int
    tokens: int
    rows: int
    columns: int
    data: bytes
    def __init__(self, file: _Optional[_Union[ImageFile, _Mapping]] = ..., position: _Optional[int] = ..., tokens: _Optional[int] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
