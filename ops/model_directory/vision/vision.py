"""How a model that sees reads images: values and protocols."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

LOW_DETAIL = 512
"""Pixels of a side of the square whose area an image of low detail has at most."""


class ImageError(Exception):
    """An image that the model cannot read. The message is for its sender."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What is seen in an image: rows and columns of tokens, or of tiles that have many tokens each."""

    rows: int
    columns: int


HUGE = (2**15, 2**15)
"""Width and height, in pixels, of an image that every bound of pixels makes smaller."""

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

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that runs may have. Each is one token of the tokenizer."""

    @property
    def largest(self) -> tuple[int, int]:
        """Width and height, in pixels, of an image that becomes the largest number of tokens."""

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        """The grid of an image of `width` by `height` pixels: how it is cut. Raises `ImageError`."""

    def size(self, grid: Grid) -> tuple[int, int] | None:
        """Width and height, in pixels, to which the image is brought; None: the image processor does that."""

    def options(self, grid: Grid) -> Mapping[str, Any]:
        """What the image processor of transformers is told beside its settings."""

    def run(self, grid: Grid) -> list[int | str]:
        """The tokens that stand for it in the prompt: ids, or texts of one token each."""


@dataclass(frozen=True, slots=True)
class UsualVision:
    """What most models have in common. See `Vision`."""

    placeholder: int

    @property
    def written(self) -> int:
        return self.placeholder

    @property
    def around(self) -> str:
        return ""

    @property
    def in_grid(self) -> bool:
        return False

    @property
    def together(self) -> Together:
        return "nowhere"

    @property
    def texts(self) -> tuple[str, ...]:
        return ()

    @property
    def largest(self) -> tuple[int, int]:
        return HUGE

    def size(self, grid: Grid) -> tuple[int, int] | None:
        return None


@dataclass(frozen=True, slots=True)
class PatchVision(UsualVision):
    """Images are brought to whole patches, each of which becomes one token."""

    patch: int
    """Pixels of a side of a patch."""

    def size(self, grid: Grid) -> tuple[int, int]:
        return grid.columns * self.patch, grid.rows * self.patch

    def options(self, grid: Grid) -> Mapping[str, Any]:
        return {"do_resize": False}
