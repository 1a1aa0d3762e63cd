"""Files with images, which come from anybody: decoded with bounds.

Pillow is imported with the first image. Decoding takes up to four bytes a pixel and some seconds, and other
threads run meanwhile: callers keep it off their event loops, and bound how many images are decoded at once.
"""

import io
import math
import re
import warnings
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from ops.model_directory.vision import ImageError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_PIXELS = 64_000_000
"""Pixels of an image."""
MAX_SIDE = 65_535
"""Pixels of a side of an image."""
MAX_SCANS = 100
"""Scans of a JPEG file, each of which may take as long as the whole image. Progressive files have ten."""
MAX_SCANNED = 16 * MAX_PIXELS
"""Pixels of all scans: some seconds."""
MAX_SEGMENTS = 2**12
"""Segments of a JPEG file that are looked at to count its scans."""
_SCAN = b"\xff\xda"
"""What begins a scan."""
_END = b"\xff\xd9"
"""What ends an image. Phones put a film behind it."""
_SEGMENT = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
"""The end, or what begins a segment that says how long it is. Codes of pixels have no such pair of bytes."""
_ORIENTATION = 0x0112
"""Of EXIF: how the image has to be turned or mirrored to be upright. 5 to 8 exchange rows and columns."""


def measured(data: bytes) -> tuple[int, int]:
    """Width and height, in pixels, of the image that `opened` gives. Raises `ImageError` if it gives none."""
    image = _decoded(data)
    return image.size[::-1] if _orientation(image) >= 5 else image.size


def opened(data: bytes) -> "Image.Image":
    """The image in mode RGB: the first one of an animation, upright, what is transparent on white.

    Raises `ImageError`.
    """
    image = _decoded(data)
    transposes = _pillow().Transpose
    turn = {
        2: transposes.FLIP_LEFT_RIGHT,
        3: transposes.ROTATE_180,
        4: transposes.FLIP_TOP_BOTTOM,
        5: transposes.TRANSPOSE,
        6: transposes.ROTATE_270,
        7: transposes.TRANSVERSE,
        8: transposes.ROTATE_90,
    }.get(_orientation(image))
    image = _opaque(image)
    return image if turn is None else image.transpose(turn)


def _decoded(data: bytes) -> "Image.Image":
    """The image as its file has it. Raises `ImageError`."""
    pillow = _pillow()
    _check_webp(data)
    try:
        image: Image.Image = pillow.open(io.BytesIO(data), formats=FORMATS)
    except pillow.DecompressionBombError as error:
        raise ImageError(f"an image has more than {MAX_PIXELS} pixels") from error
    except MemoryError:
        raise
    except Exception as error:  # whatever the code for a format raises over a file that is none
        raise ImageError(f"an image is in none of the formats {', '.join(FORMATS)}") from error
    _check_size(*image.size)
    most = min(MAX_SCANS, MAX_SCANNED // max(1, math.prod(image.size)))
    if image.format in ("JPEG", "MPO") and data.count(_SCAN) > most and _has_more_scans(data, most):
        raise ImageError(f"an image in the format JPEG has more than {most} scans")
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:  # as above
        raise ImageError(f"an image in the format {image.format} is damaged or not whole") from error
    return image


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        bounds = f"it may have {MAX_PIXELS} in all, and {MAX_SIDE} a side"
        raise ImageError(f"an image has {width} by {height} pixels: {bounds}")


def _check_webp(data: bytes) -> None:
    """Raises `ImageError`. Pillow takes memory for all pixels of such a file before it says how many."""
    match data[8:16]:
        case b"WEBPVP8X":
            _check_size(1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little"))
        case b"WEBPVP8L":
            bits = int.from_bytes(data[21:25], "little")
            _check_size(1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
        case b"WEBPVP8 ":
            sides = int.from_bytes(data[26:30], "little")
            _check_size(sides & 0x3FFF, sides >> 16 & 0x3FFF)


def _has_more_scans(data: bytes, most: int) -> bool:
    """Whether the first image of a JPEG file has more scans than `most`, or too many segments."""
    scans, at = 0, 0
    for _ in range(MAX_SEGMENTS):
        found = _SEGMENT.search(data, at)
        if found is None or found[0] == _END:
            return False
        scans += found[0] == _SCAN
        if scans > most:
            return True
        at = found.end() + max(2, int.from_bytes(data[found.end() : found.end() + 2]))
    return True


def _orientation(image: "Image.Image") -> int:
    """By EXIF, 1 to 8; 1 is upright."""
    try:
        found = int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # whatever the code for EXIF raises: the image is whole all the same
        return 1
    return found if 1 <= found <= 8 else 1


def _opaque(image: "Image.Image") -> "Image.Image":
    """The image in mode RGB, what is transparent on white."""
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        clear, deep = image.info.pop("transparency", None), image.convert("I")
        image = deep.point([value >> 8 for value in range(2**16)], "L")
        if clear is not None:
            image.putalpha(deep.point([0 if value == clear else 255 for value in range(2**16)], "L"))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white: Image.Image = _pillow().new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert("RGB")


@cache
def _pillow() -> ModuleType:
    """`PIL.Image` with the code for `FORMATS`."""
    from PIL import GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin  # noqa: F401

    # A file could make it warn in each of its lines. What is too large is refused here.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    return Image
