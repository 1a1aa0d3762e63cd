"""The small files of a model directory, and which of them has the chat template."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ops.runtime import model_files
from ops.runtime.model_files import FileError
from tokenizer_svc.errors import ModelDirectoryError

Read = TypeVar("Read")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no such file. Raises `ModelDirectoryError`."""
    return _checked(model_files.read_json, path) or {}


def read_config(path: Path) -> dict[str, Any]:
    """As `read_json`, of config.json, whose sizes are checked."""
    return _checked(model_files.read_config, path) or {}


def named_tokens(directory: Path) -> dict[str, str]:
    """Texts of the tokens that have a name, such as bos_token. Raises `ModelDirectoryError`.

    Names are in tokenizer_config.json, in old checkpoints in special_tokens_map.json.
    """
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for name, value in read_json(directory / file).items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                names[name] = text
    return names


def template_source(directory: Path) -> str | None:
    """The chat template (of several the one named default), or None if there is none.

    It is in a file of its own or in tokenizer_config.json, of models that also see in chat_template.json.
    Raises `ModelDirectoryError`.
    """
    for path in ("additional_chat_templates/default.jinja", "chat_template.jinja"):
        if (source := _read(directory / path)) is not None:
            return source
    for file in ("tokenizer_config.json", "chat_template.json"):
        given = read_json(directory / file).get("chat_template")
        if isinstance(given, list):
            try:
                given = {entry["name"]: entry["template"] for entry in given}
            except (KeyError, TypeError) as error:
                message = f"{directory / file}: chat_template: a list needs a name and a template in each"
                raise ModelDirectoryError(message) from error
        if isinstance(given, dict):
            given = given.get("default")
        if given is not None and not isinstance(given, str):
            raise ModelDirectoryError(f"{directory / file}: chat_template: {type(given).__name__} is no text")
        if given is not None:
            return given
    return None


def _read(path: Path) -> str | None:
    """What is in a file; None if there is no such file."""
    return _checked(model_files.read_text, path)


def _checked(read: Callable[[Path], Read], path: Path) -> Read | None:
    """What `read` finds; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        return read(path)
    except FileError as error:
        raise ModelDirectoryError(str(error)) from error
