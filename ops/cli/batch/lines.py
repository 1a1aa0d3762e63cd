"""The two files of `quire batch`: requests, and the results that there are so far."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ops.runtime.errors import UsageError

Json = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A request."""

    custom_id: str
    url: str
    """The path that it is sent to."""
    body: Json


def lines_of(path: Path) -> Iterator[Line]:
    """The requests of a file. Raises `UsageError`, which names the line."""
    known = set[str]()
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    line = _parsed(text, f"{path}, line {number}")
                    if line.custom_id in known:
                        raise UsageError(f"{path}, line {number}: 'custom_id' is that of an earlier line")
                    known.add(line.custom_id)
                    yield line
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _parsed(text: str, place: str) -> Line:
    try:
        fields = json.loads(text)
        json.dumps(fields, allow_nan=False)  # as it is sent
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: not JSON: {error}") from None
    match fields:
        case {"custom_id": str(custom_id), "method": "POST", "url": str(url), "body": dict(body)}:
            pass
        case _:
            raise UsageError(f"{place}: not a request with 'custom_id', 'method' POST, 'url' and 'body'")
    if not url.startswith("/v1/"):
        raise UsageError(f"{place}: 'url' is not that of an endpoint, such as /v1/chat/completions")
    if body.get("stream") or body.get("background"):
        raise UsageError(f"{place}: 'stream' and 'background' do not go with a batch")
    return Line(custom_id, url, body)


class Results:
    """A file of results, to whose end others are added. Entered, it is open."""

    def __init__(self, path: Path) -> None:
        """Raises `UsageError`."""
        self._path = path
        self.failed = 0
        """Results that are errors."""
        self.known = set[str]()
        """The custom ids of all results."""

    def __enter__(self) -> Self:
        try:
            self._file = self._path.open("a+b")
            self._file.seek(0)
            whole = 0
            for text in self._file:
                if not text.endswith(b"\n"):  # it was being written when the command was killed
                    break
                whole += len(text)
                self._note(json.loads(text))
            self._file.truncate(whole)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error}") from None
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{self._path} has other lines than results: choose another file") from None
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        with suppress(OSError):  # what could not be written was told when it was added
            self._file.close()

    def add(self, result: Json) -> None:
        """Write a result, in one step. Raises `UsageError`."""
        try:
            try:
                line = json.dumps(result, ensure_ascii=False).encode()
            except UnicodeEncodeError:  # half a character: escaped it stays what it is
                line = json.dumps(result).encode()
            self._file.write(line + b"\n")
            self._file.flush()
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}") from None
        self._note(result)

    def _note(self, result: Json) -> None:
        self.known.add(result["custom_id"])
        self.failed += result["response"] is None or result["response"]["status_code"] != 200
