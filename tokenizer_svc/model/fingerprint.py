"""What the text of an answer depends on besides the request, in short.

A caller that goes on with an answer at another process hands back what it was told when the answer began: the
fingerprint of the tokenizer, and that of the worker, which is the scheduler's to check.
"""

import functools
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from ops.model_directory import grammars, special_tokens
from ops.model_directory.vision import PROCESSOR_FILES

FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"),
    *("generation_config.json", "chat_template.json", "chat_template.jinja"),
    *("additional_chat_templates/default.jinja", "additional_chat_templates/tool_use.jinja"),
)
"""Files of a model directory that decide how text becomes tokens and back, and the sampling defaults."""


def fingerprint_of(directory: Path, image_tokens: int = 0, formats: Sequence[str] = ()) -> str:
    """Of the tokenizer in a Hugging Face directory: 16 hexadecimal digits. Raises `OSError`.

    `image_tokens`: see `TextModel.load`; 0 if the model takes no images. `formats`: names of the formats of
    calls and thoughts, whose marks are part of an answer's text although they may be special tokens.
    """
    found = hashlib.blake2b(f"{image_tokens} {' '.join(formats)} ".encode(), digest_size=8)
    for name in (*FILES, *PROCESSOR_FILES) if image_tokens else FILES:
        path = directory / name
        if path.is_file():
            content = path.read_bytes()
            found.update(f"{name} {len(content)} ".encode())
            found.update(content)
    return found.hexdigest()


@functools.cache
def trial_fingerprint() -> str:
    """Of what tries grammars: Python, the library, and the code of this service with all its limits.

    Two versions of this code may make different grammars of one schema. The code is hashed, because a
    version's number could be forgotten.
    """
    found = hashlib.blake2b(f"{sys.version} {grammars.VERSION}".encode(), digest_size=16)
    shared = (Path(grammars.__file__), Path(special_tokens.__file__))
    for path in (*shared, *sorted(Path(__file__).parents[1].rglob("*.py"))):
        found.update(hashlib.blake2b(path.read_bytes()).digest())
    return found.hexdigest()


def joined(tokenizer: str, worker: str) -> str:
    """Both fingerprints as the gateway keeps them; empty if neither is known."""
    return f"{tokenizer} {worker}" if tokenizer or worker else ""


def tokenizer_part(fingerprint: str) -> str:
    return fingerprint.partition(" ")[0]


def worker_part(fingerprint: str) -> str:
    return fingerprint.partition(" ")[2]
