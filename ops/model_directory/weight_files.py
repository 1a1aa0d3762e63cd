"""The files of a directory that have the model's weights.

Mistral's repositories have the weights twice: as model*.safetensors and as consolidated.safetensors, in which
tensors have other names. The second form and its configuration, params.json, are not read.
"""

from pathlib import Path

from ops.model_directory.files import FileError

CONSOLIDATED = "consolidated*.safetensors"


def weight_files(directory: Path) -> list[Path]:
    """The safetensors of a model, in the order of their names."""
    return sorted({*directory.glob("*.safetensors")} - {*directory.glob(CONSOLIDATED)})


def check_form(directory: Path) -> None:
    """Raise `FileError` if the model is there in Mistral's form alone."""
    alone = [] if weight_files(directory) else sorted(directory.glob(CONSOLIDATED))
    if not (directory / "config.json").is_file():
        alone += [path for path in (directory / "params.json",) if path.is_file()]
    if alone:
        what = "config.json and model*.safetensors are needed"
        raise FileError(f"{directory}: Mistral's own form of a model ({alone[0].name}) is not read: {what}")
