"""A form with one file (RFC 7578), read as it comes: the file goes on in pieces, and is never held."""

from collections.abc import AsyncGenerator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from gateway.errors import BadRequest, TooLarge, WrongMediaType
from gateway.http.connection import Disconnected

MAX_FIELD_BYTES = 1024
MAX_FIELDS = 16
"""Parts of a form beside its file."""
MAX_OTHER_BYTES = 2**17
"""Bytes of a form beside its file: 4 KiB for the head of each part, a field, and what is between them."""


class Form:
    """The fields of a form, once its file has been read."""

    def __init__(self, file: str, most: int) -> None:
        """`file`: the name of the field that is a file. `most`: bytes of the file."""
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        """Of the file; None as long as there was none."""
        self._file, self._most = file, most
        self._parts = 0
        self._header, self._value, self._disposition = b"", b"", b""
        self._text: bytearray | None = None
        """What has come of a field; None while the file comes."""
        self._name = ""
        self._pieces: list[bytes] = []
        self._ended = False

    async def read(self, request: Request) -> AsyncGenerator[bytes, None]:
        """What comes of the file. Raises `WrongMediaType`, `TooLarge`, `BadRequest` or `Disconnected`."""
        kind, options = parse_options_header(request.headers.get("content-type"))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise WrongMediaType("The body must be a form: send 'Content-Type: multipart/form-data'.")
        if request.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
            raise WrongMediaType("A form must not be compressed.")
        try:
            parser = MultipartParser(options[b"boundary"], {
                "on_part_begin": self._part_begins,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._part_ends,
                "on_end": self._ends,
            })  # fmt: skip
            read = size = 0
            async for part in request.stream():
                parser.write(part)
                read += len(part)
                pieces, self._pieces = self._pieces, []
                for piece in pieces:
                    size += len(piece)
                    if size > self._most:
                        raise TooLarge(f"The file is larger than {self._most} bytes.", param=self._file)
                    yield piece
                if read - size > MAX_OTHER_BYTES:
                    raise TooLarge(f"The form has more than {MAX_OTHER_BYTES} bytes beside its file.")
        except FormParserError as error:
            raise BadRequest(f"The body is not a valid form: {error}.", code="invalid_form") from None
        except ClientDisconnect:
            raise Disconnected from None
        if not self._ended:
            raise BadRequest("The body is not a valid form: its end is missing.", code="invalid_form")
        if self.filename is None:
            raise _missing(self._file)

    def _ends(self) -> None:
        self._ended = True

    def _part_begins(self) -> None:
        self._disposition = b""
        self._parts += 1
        if self._parts > MAX_FIELDS + 1:
            raise BadRequest(f"The form has more than {MAX_FIELDS} fields.", code="invalid_value")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode(errors="replace")
        if self._name == self._file:
            if self.filename is not None:
                raise BadRequest(
                    f"'{self._file}': one file at a time.", param=self._file, code="invalid_value"
                )
            self.filename = options.get(b"filename", b"").decode(errors="replace")[:255]
            self._text = None
        else:
            self._text = bytearray()

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._text is None:
            self._pieces.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD_BYTES:
            name = self._name[:100]
            raise BadRequest(f"'{name}' is too long.", param=name, code="invalid_value")

    def _part_ends(self) -> None:
        if self._text is not None:
            self.fields[self._name] = self._text.decode(errors="replace")


def _missing(name: str) -> BadRequest:
    return BadRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
