"""The models of a deployment: where each one lies, and under which name it is served."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ops.model_directory.files import FileError, not_there
from ops.model_directory.hub import model_name
from ops.model_directory.lora_modules import named, parse
from ops.model_directory.settings import SHIPPED_MODEL
from ops.model_directory.weight_files import SINGLE, gguf_files, named_files, only_pickles
from ops.runtime.errors import UsageError

SHIPPED_MODEL_NAME = "quire-tiny"
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class Served:
    """A model that is served."""

    path: Path = SHIPPED_MODEL
    """Its directory, as `hub.fetched` gives it, or before that what was asked for."""
    given: str = ""
    """The name that it was given; empty: its own."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of `MODEL` or `NAME=MODEL`. What is there under the whole text is a path."""
        name, equals, path = text.partition("=")
        if equals and path and _NAME.fullmatch(name) and not Path(text).exists():
            return cls(Path(path), name)
        return cls(Path(text))

    @property
    def name(self) -> str:
        """The name under which it is served."""
        if self.given:
            return self.given
        return SHIPPED_MODEL_NAME if self.path == SHIPPED_MODEL else model_name(self.path)

    def check(self) -> None:
        """Raise `UsageError` unless the directory holds what a model consists of."""
        if not self.path.is_dir():
            raise UsageError(
                f"{self.path} is not a model directory: there is no such directory. "
                "A model of the Hugging Face Hub is named ORG/NAME"
            )
        try:
            weights = [path.name for path in gguf_files(self.path)] or named_files(self.path)
        except FileError as error:
            raise UsageError(str(error)) from error
        for name in ("config.json", "tokenizer.json", *weights):
            file = self.path / name
            if not file.exists():
                if name == SINGLE and (wrong := only_pickles(self.path)):
                    raise UsageError(f"{self.path}: {wrong}")
                raise UsageError(f"{self.path} is not a model directory: it has no {name}")
            if why := not_there(file):
                raise UsageError(f"{file}: {why}")


def asked_for(texts: Sequence[str]) -> tuple[Served, ...]:
    """The models of `--model`, or else of `QUIRE_MODEL`, or else the shipped one. Raises `UsageError`.

    `QUIRE_MODEL_NAME` names a model that is alone and was not given a name.
    """
    texts = texts or [os.environ.get("QUIRE_MODEL") or str(SHIPPED_MODEL)]
    found = tuple(map(Served.parse, texts))
    if name := os.environ.get("QUIRE_MODEL_NAME"):
        if len(found) > 1:
            raise UsageError(f"QUIRE_MODEL_NAME={name}: names one model; of several: --model NAME=MODEL")
        if not found[0].given:
            return (Served(found[0].path, name),)
    return found


def adapters_asked_for(texts: Sequence[str]) -> dict[str, Path]:
    """The LoRA adapters of `--lora-modules`, or else of `QUIRE_LORA_MODULES`. Raises `UsageError`."""
    try:
        return named(texts) if texts else parse(os.environ.get("QUIRE_LORA_MODULES", ""))
    except ValueError as error:
        raise UsageError(f"{'--lora-modules' if texts else 'QUIRE_LORA_MODULES'}: {error}") from None


def check_adapters(adapters: Mapping[str, Path], models: Sequence[Served]) -> None:
    """Raise `UsageError` unless each is the directory of an adapter, with a name that no model has."""
    if adapters and len(models) > 1:
        raise UsageError(
            "--lora-modules: of several models: start a deployment for the one that has adapters"
        )
    for name, directory in adapters.items():
        if name == models[0].name:
            raise UsageError(f"--lora-modules: '{name}' is the name of the model")
        if not (directory / "adapter_config.json").is_file():
            raise UsageError(f"{directory} is not a LoRA adapter: it has no adapter_config.json")


def check_models(models: Sequence[Served]) -> None:
    """Raise `UsageError` unless each is a model, and of several each has a name of its own.

    A name is part of the names of a model's processes and of their logs.
    """
    for model in models:
        model.check()
    names = [model.name for model in models]
    for name in names if len(names) > 1 else ():
        if names.count(name) > 1 or not _NAME.fullmatch(name):
            reason = "is the name of several models" if names.count(name) > 1 else "is no name"
            raise UsageError(f"'{name}' {reason}: --model NAME=MODEL gives a name of letters, digits and _.-")
