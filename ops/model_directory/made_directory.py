"""Model directories in the user's cache: some of their files are made, the others are links.

All services read a model from a directory with the files that Hugging Face's libraries write. Of a model
that has others such a directory is made once. Processes that start side by side each make it, and the
first one's stays.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ops.model_directory.files import FileError
from ops.runtime.user_directory import user_directory


def made_directory(
    model: Path, kind: str, name: str, links: Mapping[str, Path], contents: Callable[[], Mapping[str, Any]]
) -> Path:
    """The directory `name` of the model at `model`, which is made if it is not there yet.

    `kind`: what it is made of, and in which version; a part of its path. `links`: files that it links to, by
    the names of the links; it is another directory if one of them has another size or time of change.
    `contents`: makes the contents of its own files, as JSON, by their names; they stand for files with these
    names. Raises `FileError`.
    """
    files = sorted(links.values())
    marks = [f"{path} {(stat := path.stat()).st_size} {stat.st_mtime_ns}" for path in files]
    key = hashlib.blake2b("\n".join([kind, *marks]).encode(), digest_size=8).hexdigest()
    base = user_directory("XDG_CACHE_HOME", ".cache") / kind.split()[0]
    directory = base / key / name
    if directory.is_dir():
        return directory
    made_of = contents()
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=directory.parent))
        try:
            for file, content in made_of.items():
                (made / file).parent.mkdir(exist_ok=True)
                (made / file).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
            for link in links.keys() - made_of.keys():
                (made / link).symlink_to(links[link])
            made.chmod(0o755)
            made.rename(directory)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except UnicodeEncodeError as error:
        raise FileError(f"{model}: half of a character is no text: {error}") from error
    except OSError as error:
        if not directory.is_dir():  # another process was first
            raise FileError(f"{model}: its configuration cannot be kept: {error}") from error
    return directory
