"""How a model that sees reads images: values and protocols."""

from dataclasses import dataclass
from typing import Literal, Protocol

LOW_DETAIL = 512
"""Pixels of a side of the square whose area an image of low detail has at most."""


class ImageError(Exception):
    """An image that the model cannot read. The message is for its sender."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What is seen in an image."""

    rows: int
    columns: int


TEXT_ALONE = "QUIRE_IMAGE_TOKENS=0 serves text alone"
"""What to do about a model whose part that sees cannot be used."""

Together = Literal["nowhere", "everywhere", "in windows"]


class Vision(Protocol):
    """How one model reads images."""

    @property
    def placeholder(self) -> int:
        """Id of the token in place of which the model reads what it sees."""

    @property
    def written(self) -> int:
        """Id of the token that the chat template writes for a whole image."""

    @property
    def around(self) -> str:
        """Text that is put before that token and behind it, before the prompt becomes tokens."""

    @property
    def in_grid(self) -> bool:
        """What is seen has positions in rows and columns: see `gpu_worker/models/rope.py`."""

    @property
    def together(self) -> Together:
        """In which layers the tokens of an image see each other, those behind them too."""

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        """What is seen in an image of so many pixels. Raises `ImageError`."""

    def size(self, grid: Grid) -> tuple[int, int] | None:
        """Width and height, in pixels, to which the image is brought; None: the image processor does that."""

    def run(self, grid: Grid) -> list[int | str]:
        """The tokens that stand for it in the prompt: ids, or names of special tokens."""
