"""The small files of a model directory, and which of them has the chat template."""

import json
from pathlib import Path
from typing import Any

from tokenizer_svc.errors import ModelDirectoryError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no such file. Raises `ModelDirectoryError`."""
    text = _read(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ModelDirectoryError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelDirectoryError(f"{path} is not a JSON object")
    return value


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
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelDirectoryError(f"{path} cannot be read: {error}") from error
