"""Tokens of byte-level BPE by their ranks, and a plain version of tiktoken's algorithm."""

from itertools import pairwise
from pathlib import Path

import regex
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ops.model_directory.byte_alphabet import BYTES

TEXTS = [
    "The fox isn't here; it's 12345 steps away, ÆØÅ and naïve.",
    "她住在河边，名字叫Ruby。   Two  spaces\n\n\nand lines\r\n",
    "def f(x):\n\treturn x ** 2  # 3.14159\n",
    "emoji 🦊🦊 \x00\x7f ﬁ Ǆ ʰ é́ 한국어 日本語カタカナ",
    "https://a.b/c/d//\n HTTPServer iPhone ÉCOLE École ٣٤٥ हिन्दी ไทย",
    "",
    " ",
]


def trained() -> list[bytes]:
    """Tokens in the order of their ranks: the bytes, and what a short training on this file merges."""
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator([Path(__file__).read_text(), *3 * TEXTS], trainer)
    by_id = sorted((number, token) for token, number in tokenizer.get_vocab().items())
    return [bytes(BYTES[character] for character in token) for _, token in by_id]


def plainly(ranks: dict[bytes, int], split: str, text: str) -> list[int]:
    """The ranks of a text's tokens. `split`: an expression for the parts in which neighbours are merged."""
    found = []
    for part in regex.findall(split, text, regex.V1):
        pieces = [bytes([byte]) for byte in part.encode()]
        while len(pieces) > 1:
            pairs = [
                (ranks.get(left + right, 1 << 30), place)
                for place, (left, right) in enumerate(pairwise(pieces))
            ]
            rank, place = min(pairs)
            if rank == 1 << 30:
                break
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
        found += [ranks[piece] for piece in pieces]
    return found
