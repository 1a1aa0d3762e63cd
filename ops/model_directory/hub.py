"""Models by name: an id of the Hugging Face Hub instead of a directory, fetched into the library's cache.

The library is huggingface_hub, and its settings hold: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE. It
locks what it fetches, so that processes that start side by side fetch everything once.
"""

import glob
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ops.model_directory.files import FileError
from ops.model_directory.gguf.directory import SUFFIX, as_directory, gguf_name, gguf_of
from ops.model_directory.tokenizer_files import made
from ops.model_directory.weight_files import check_form, named_files
from ops.runtime.errors import StartError, TransientStartError

DENSE = "[0-9]*_Dense/model.safetensors"
"""Weights of layers after its pooling (`dense.py`)."""
FILES = ["*.json", "*.jinja", *made.FILES]
"""What is fetched, with the weights or without: never code or pickles, nor what some repositories have
besides, the same weights once more under another name."""

ADAPTER = ["adapter_config.json", "adapter_model.safetensors"]
"""What a LoRA adapter consists of."""

_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)
_CACHED = "models--"
"""What the library's folders of models begin with."""


class HubError(StartError):
    """The model cannot be fetched from the Hub, or its GGUF file cannot be used; the message is one line."""


class HubAway(HubError, TransientStartError):
    """The Hub cannot be reached, or cannot answer now."""


def is_id(model: Path) -> bool:
    """`org/name` or `org/name@revision`, where there is no such directory."""
    return _ID.fullmatch(str(model)) is not None and model.parts[0] not in (".", "..") and not model.exists()


def model_name(model: Path) -> str:
    """A model's name if none is configured: the last part of its directory's path, or of its id, or the name
    of its GGUF file."""
    if is_id(model):
        return Path(str(model).partition("@")[0]).name
    if model.suffix == SUFFIX and not model.is_dir():
        return gguf_name(model)
    path = model.resolve()
    snapshots, folder = path.parent, path.parent.parent.name
    if snapshots.name == "snapshots" and folder.startswith(_CACHED):
        return folder.split("--")[-1]
    return path.name


def fetched(model: Path, say: Callable[[str], object] = lambda line: None, weights: bool = True) -> Path:
    """The directory of a model; an id's is in the library's cache, and fetched if it is not there yet.

    A path that is no id stays as it is, whether there is anything or not; but a GGUF file becomes a directory
    (`gguf/directory.py`), and a directory without a tokenizer.json may get one (`tokenizer_files/made.py`).

    `weights`: whether they are fetched, too. Raises `HubError`.
    """
    if not is_id(model):
        path = model.expanduser().absolute()
        try:
            file = gguf_of(path)
            return _complete(path, weights) if file is None else as_directory(file, say)
        except FileError as error:
            raise HubError(str(error)) from error
    directory = _downloaded(model, FILES, say)
    try:
        if weights:
            names = named_files(directory)
            _downloaded(model, [*map(glob.escape, names), DENSE], commit=directory.name)
            if missing := [name for name in names if not (directory / name).is_file()]:
                from huggingface_hub import constants

                raise HubError(
                    f"{model}: {constants.ENDPOINT} has no {missing[0]} of it; "
                    "pickles are never fetched, nor is consolidated.safetensors"
                )
        return _complete(directory, weights)
    except FileError as error:
        raise HubError(str(error)) from error


def fetched_adapter(adapter: Path, say: Callable[[str], object] = lambda line: None) -> Path:
    """The directory of a LoRA adapter, as `fetched` gives that of a model. Raises `HubError`."""
    return _downloaded(adapter, ADAPTER, say) if is_id(adapter) else adapter.expanduser().absolute()


def _downloaded(
    model: Path, files: Sequence[str], say: Callable[[str], object] = lambda line: None, commit: str = ""
) -> Path:
    """The files of an id that match one of these patterns, in the library's cache.

    `commit`: empty: that which the id's revision names now. Raises `HubError`.
    """
    # Its import takes longer than the rest of a command, and few need it.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()  # a log would get a line for each of their steps
    name, _, revision = str(model).partition("@")
    endpoint, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    say(f"fetch   {model} from {endpoint} to {cache}")
    try:
        found = snapshot_download(
            name, revision=commit or revision or None, cache_dir=cache, allow_patterns=list(files)
        )
    # HTTP, locks, disks, its own checks of an id: the library raises many kinds of errors.
    except Exception as caught:
        error = _cause(caught)
        line = f"{model}: {_reason(error, endpoint, cache)}"
        raise HubError(line) if _lasts(error) else HubAway(line) from caught
    return Path(found)


def _complete(directory: Path, weights: bool) -> Path:
    check_form(directory, weights)
    return made.with_tokenizer(directory, model_name(directory))


def _cause(error: Exception) -> Exception:
    """What the Hub answered, or that it may not be asked. The library says only that there is no copy."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    cause = error.__cause__
    if isinstance(error, LocalEntryNotFoundError) and isinstance(
        cause, (HfHubHTTPError, OfflineModeIsEnabled)
    ):
        return cause
    return error


def _lasts(error: Exception) -> bool:
    """Whether the same question would be answered in the same way."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (400, 401, 403, 404)
    return isinstance(error, (HFValidationError, OfflineModeIsEnabled))


def _reason(error: Exception, endpoint: str, cache: str) -> str:
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match error:
        case GatedRepoError():
            return (
                f"{endpoint} gives it only to those who have accepted its terms: accept them on its "
                "page there, and set HF_TOKEN to a token of yours"
            )
        case RepositoryNotFoundError():
            return (
                f"there is no such directory, and {endpoint} has no such model, or shows it to some alone: "
                "if you are one of them, set HF_TOKEN to a token of yours"
            )
        case RevisionNotFoundError():
            return f"{endpoint} has no such revision of it"
        case HfHubHTTPError():
            said = (error.server_message or "").partition("\n")[0]
            return f"{endpoint} answers {error.response.status_code}{said and f': {said}'}"
        case LocalEntryNotFoundError():
            return f"there is no such directory, it is not whole in {cache}, and {endpoint} cannot be reached"
        case OfflineModeIsEnabled():
            return f"there is no such directory, it is not whole in {cache}, and HF_HUB_OFFLINE is set"
    return f"{endpoint}: {str(error).partition(chr(10))[0] or type(error).__name__}"
