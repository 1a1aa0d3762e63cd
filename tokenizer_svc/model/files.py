"""The small files of a model directory, and which of them has the chat template."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ops.model_directory import files
from ops.model_directory.files import FileError
from tokenizer_svc.errors import ModelDirectoryError

Read = TypeVar("Read")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no such file. Raises `ModelDirectoryError`."""
    return _checked(files.read_json, path) or {}


def read_config(path: Path) -> dict[str, Any]:
    """As `read_json`, of config.json, whose sizes are checked."""
    return _checked(files.read_config, path) or {}


def named_tokens(directory: Path) -> dict[str, str]:
    """Texts of the tokens that have a name, such as bos_token. Raises `ModelDirectoryError`.

    Names are in tokenizer_config.json, in old checkpoints in special_tokens_map.json.
    """
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for name, value in read_json(directory / file).items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                if any("\ud800" <= character <= "\udfff" for character in text):
                    raise ModelDirectoryError(f"{directory / file}: {name}: half of a character is no text")
                names[name] = text
    return names


def template_source(directory: Path) -> str | None:
    """The chat template, or None if there is none. Raises `ModelDirectoryError`."""
    return chat_templates(directory).get("default")


def chat_templates(directory: Path) -> Mapping[str, str]:
    """Chat templates by name: `default`, and `tool_use` for conversations with functions, if there are such.

    They are in files of their own or in tokenizer_config.json. A model that sees has a processor, whose
    chat_template.json comes first: the tokenizer's template may know no images. Raises `ModelDirectoryError`.
    """
    places = {name: directory / f"additional_chat_templates/{name}.jinja" for name in ("tool_use", "default")}
    found = {name: source for name, path in places.items() if (source := _read(path)) is not None}
    if "default" not in found and (source := _read(directory / "chat_template.jinja")) is not None:
        found["default"] = source
    if found:
        return found
    order = ("tokenizer_config.json", "chat_template.json")
    sees = isinstance(read_config(directory / "config.json").get("vision_config"), dict)
    for file in reversed(order) if sees else order:
        given = read_json(directory / file).get("chat_template")
        if isinstance(given, list):
            try:
                given = {entry["name"]: entry["template"] for entry in given}
            except (KeyError, TypeError) as error:
                message = f"{directory / file}: chat_template: a list needs a name and a template in each"
                raise ModelDirectoryError(message) from error
        if not isinstance(given, dict):
            given = {"default": given}
        found = {name: given[name] for name in places if given.get(name) is not None}
        for source in found.values():
            if not isinstance(source, str):
                raise ModelDirectoryError(
                    f"{directory / file}: chat_template: {type(source).__name__} is no text"
                )
        if found:
            return found
    return {}


def _read(path: Path) -> str | None:
    """What is in a file; None if there is no such file."""
    return _checked(files.read_text, path)


def _checked(read: Callable[[Path], Read], path: Path) -> Read | None:
    """What `read` finds; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        return read(path)
    except FileError as error:
        raise ModelDirectoryError(str(error)) from error
