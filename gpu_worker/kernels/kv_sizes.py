"""What keys and values take in pages: known without PyTorch, for settings and for `quire plan-memory`.

    row      the key, or the value, that one head keeps of one token
    token    all of its rows in one layer: `PageShape` has their number and their sizes
    state    what a recurrent layer keeps of all tokens of a sequence so far: once in each block

A format of pages is named here, and implemented in the folder `kv/` of each back end that has it.
"""

from collections.abc import Callable
from dataclasses import dataclass

AUTO = "auto"
"""Keys and values stay in the type of the activations."""

TYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a number of each type of activations."""

ROW_BYTES: dict[str, Callable[[int], int]] = {
    "int8": lambda size: size + 4,
    "fp8": lambda size: size,
}
"""Bytes of a row of `size` numbers in each format beside `AUTO`, with its scale if each row has one."""


@dataclass(frozen=True, slots=True)
class PageShape:
    """What a token leaves in the pages of a layer. It follows from the model, whatever the format."""

    heads: int
    """Key heads."""
    key_size: int
    """Numbers of a key."""
    value_size: int
    """Numbers of a value."""
    shared: bool = False
    """A value is the first `value_size` numbers of its key's row, as in latent attention. Such pages lie row
    by row on every back end: a row is [compressed | rotated]."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Sizes of the rows that a head keeps of a token."""
        return (self.key_size,) if self.shared else (self.key_size, self.value_size)


def token_bytes(shape: PageShape, name: str) -> int:
    """Bytes that one token takes in the pages of one layer. `name`: one of `ROW_BYTES`, or of `TYPES`."""
    if name in TYPES:
        return shape.heads * sum(TYPES[name] * size for size in shape.rows)
    return shape.heads * sum(ROW_BYTES[name](size) for size in shape.rows)


@dataclass(frozen=True, slots=True)
class StateShape:
    """What a sequence leaves in each of its blocks in a recurrent layer: the state after the last token that
    the block has. Its numbers are float32, whatever the format of pages is."""

    inputs: int
    """Tokens whose inputs of the convolution are kept: one fewer than its filters see."""
    channels: int
    """Channels of the convolution."""
    heads: int = 0
    """Matrices. 0: the layer is a convolution and nothing else."""
    key_size: int = 0
    """Rows of a matrix."""
    value_size: int = 0
    """Columns of a matrix."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in one layer."""
        return 4 * (self.inputs * self.channels + self.heads * self.key_size * self.value_size)


LONGEST_BLOCK = 1024
"""Tokens of a block at most."""


def usual_block_size(token_bytes: int, state_bytes: int, longest: int = LONGEST_BLOCK) -> int:
    """Tokens of a block where no setting says how many.

    `token_bytes`: of a token's keys and values in all layers. `state_bytes`: of a block's states in all
    layers. `longest`: tokens of the longest sequence. States should not take more memory than keys and
    values, if a block need not be too long for that: only whole blocks are shared.
    """
    size = 16
    while size < min(LONGEST_BLOCK, longest) and size * token_bytes < state_bytes:
        size *= 2
    return size
