"""A small tekken.json, as Mistral's models have it."""

from base64 import b64encode
from typing import Any

from tests.support.byte_tokens import trained

BEFORE, UPPER, LOWER = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERN = (
    rf"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = [
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
]
NEW = ["[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"]
COUNT = 40
"""Special tokens; those that have no text in the file are named by their ids."""


def tekken(version: str, special: list[str] | None) -> dict[str, Any]:
    """A file with more tokens than the model has."""
    tokens = trained()
    found: dict[str, Any] = {
        "config": {
            "pattern": PATTERN,
            "version": version,
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": len(tokens) - 50 + COUNT,
            "default_num_special_tokens": COUNT,
        },
        "vocab": [
            {"rank": rank, "token_bytes": b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(tokens)
        ],
        "image" if version == "v13" else "multimodal": {"image_patch_size": 14, "max_image_size": 560},
    }
    if special is not None:
        found["special_tokens"] = [
            {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(special)
        ]
    return found
