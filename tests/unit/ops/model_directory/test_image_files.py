"""Files with images: sizes, bounds, and pixels as a worker gets them."""

import io
import struct
import warnings
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from ops.model_directory import image_files
from ops.model_directory.image_files import FORMATS, measured, opened
from ops.model_directory.vision import ImageError

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def file_of(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def corners(width: int = 6, height: int = 4) -> Image.Image:
    """Black, with a red pixel in the upper left corner and a blue one in the upper right one."""
    image = Image.new("RGB", (width, height))
    image.putpixel((0, 0), RED)
    image.putpixel((width - 1, 0), BLUE)
    return image


def png_of(width: int, height: int) -> bytes:
    """The beginning of a file with one bit a pixel, and none of the pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_has_its_size_and_is_opened_in_colours(form: str) -> None:
    data = file_of(Image.new("RGB", (31, 17), WHITE), form)
    image = opened(data)
    assert measured(data) == image.size == (31, 17)
    assert image.mode == "RGB"
    assert image.getpixel((30, 16)) == WHITE


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_an_image_is_upright(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = file_of(corners(), form, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    image = opened(data)
    assert measured(data) == image.size == upright.size
    assert image.tobytes() == upright.tobytes()


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_turns_nothing(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = file_of(corners(), exif=exif)
    assert measured(data) == opened(data).size == (6, 4)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_leaves_the_image_as_it_is() -> None:
    data = file_of(corners(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    assert measured(data) == opened(data).size == (6, 4)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB"])
def test_what_is_transparent_is_white(mode: str) -> None:
    alpha = mode.endswith("A")
    image = Image.new(mode, (2, 1), (0,) * len(mode) if alpha else 0)
    image.putpixel(
        (1, 0), (*(0,) * (len(mode) - 1), 255) if alpha else (9,) * len(mode) if mode != "P" else 1
    )
    options = {} if alpha else {"transparency": (0, 0, 0) if mode == "RGB" else 0}
    found = opened(file_of(image, **options))
    assert found.getpixel((0, 0)) == WHITE
    assert found.getpixel((1, 0)) != WHITE


def test_half_transparent_is_half_white() -> None:
    assert opened(file_of(Image.new("RGBA", (1, 1), (255, 0, 0, 127)))).getpixel((0, 0)) == (255, 128, 128)


def test_sixteen_bits_of_grey_are_not_cut_off() -> None:
    image = Image.new("I;16", (2, 1))
    image.putpixel((0, 0), 0x1234)
    image.putpixel((1, 0), 0xFFFF)
    found = opened(file_of(image))
    assert [found.getpixel((x, 0)) for x in (0, 1)] == [(0x12,) * 3, WHITE]


def test_transparent_grey_of_sixteen_bits() -> None:
    """Only the very value is transparent, and none that has its upper byte."""
    image = Image.new("I;16", (3, 1))
    for x, value in enumerate((0x1234, 0x1235, 0xABCD)):
        image.putpixel((x, 0), value)
    found = opened(file_of(image, transparency=0x1234))
    assert [found.getpixel((x, 0)) for x in range(3)] == [WHITE, (0x12,) * 3, (0xAB,) * 3]


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_image_is_seen(form: str) -> None:
    frames = [Image.new("RGB", (3, 2), colour) for colour in (RED, BLUE)]
    data = file_of(frames[0], form, save_all=True, append_images=frames[1:])
    red, _, blue = opened(data).getpixel((0, 0))
    assert (red > 250, blue < 5) == (True, True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "none of the formats"),
        (b"GIF89a", "none of the formats"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "none of the formats"),
        (file_of(corners(), "BMP"), "none of the formats PNG, JPEG, WEBP, GIF"),
        (file_of(corners(), "TIFF"), "none of the formats"),
        (png_of(8001, 8000), "8001 by 8000 pixels: it may have 64000000"),
        (png_of(65_536, 1), "65536 by 1 pixels: .* 65535 a side"),
        (png_of(30_000, 30_000), "more than 64000000 pixels"),
        (png_of(2**31 - 1, 2**31 - 1), "more than 64000000 pixels"),
        (png_of(8, 8), "format PNG is damaged or not whole"),
    ],
)
def test_what_is_no_image_or_too_large_is_refused(data: bytes, message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for read in (measured, opened):
            with pytest.raises(ImageError, match=message):
                read(data)


@pytest.mark.parametrize("form", FORMATS)
def test_half_a_file_is_refused(form: str) -> None:
    data = file_of(Image.effect_noise((64, 64), 50).convert("RGB"), form)
    with pytest.raises(ImageError):
        measured(data[: len(data) // 2])


def test_many_scans_are_refused() -> None:
    data = file_of(corners(), "JPEG", progressive=True)
    assert data.count(b"\xff\xda") > 1
    assert measured(data) == (6, 4)
    begin = data.rindex(b"\xff\xda")
    with pytest.raises(ImageError, match="more than 100 scans"):
        measured(data[:begin] + data[begin:-2] * 100 + data[-2:])


def test_scans_of_large_images_are_fewer() -> None:
    """64 million pixels may be scanned 16 times."""
    data = file_of(Image.new("L", (8000, 7000)), "JPEG", progressive=True)
    begin, scans = data.rindex(b"\xff\xda"), data.count(b"\xff\xda")
    assert measured(data) == (8000, 7000)
    with pytest.raises(ImageError, match="more than 18 scans"):
        measured(data[:begin] + data[begin:-2] * (20 - scans) + data[-2:])


def webp_of(kind: bytes, side: int) -> bytes:
    """The head of a WebP file with such a first part, of `side` by `side` pixels."""
    whole, sides = (side - 1).to_bytes(3, "little"), side.to_bytes(2, "little")
    head = {
        b"VP8X": bytes(4) + whole + whole,
        b"VP8L": b"\x2f" + ((side - 1) * (1 + 2**14)).to_bytes(4, "little"),
        b"VP8 ": b"\x10\x00\x00\x9d\x01\x2a" + sides + sides,
    }[kind]
    return b"RIFF\x00\x00\x00\x00WEBP" + kind + len(head).to_bytes(4, "little") + head


@pytest.mark.parametrize("kind", [b"VP8X", b"VP8L", b"VP8 "])
def test_a_large_file_of_webp_is_refused_before_there_is_memory_for_it(
    kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    monkeypatch.setattr(image_files._pillow(), "open", lambda *_, **__: asked.append(1))
    with pytest.raises(ImageError, match="16383 by 16383 pixels"):
        measured(webp_of(kind, 16383))
    assert not asked


@pytest.mark.parametrize("kind", [b"VP8X", b"VP8L", b"VP8 "])
def test_the_sides_of_a_file_of_webp_are_those_that_pillow_finds(
    kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = {"save_all": True, "append_images": [Image.new("RGB", (6, 4), WHITE)]}
    options: dict[str, Any] = {"lossless": True} if kind == b"VP8L" else several if kind == b"VP8X" else {}
    data = file_of(corners(), "WEBP", **options)
    assert data[12:16] == kind
    found = list[tuple[int, int]]()
    monkeypatch.setattr(image_files, "_check_size", lambda *size: found.append(size))
    assert measured(data) == (6, 4)
    assert found == [(6, 4), (6, 4)]


def test_segments_are_not_looked_at_without_end() -> None:
    data = file_of(corners(), "JPEG", comment=b"\xff\xda" * 200)
    assert measured(data) == (6, 4)
    with pytest.raises(ImageError, match="more than 100 scans"):
        measured(data[:2] + b"\xff\xfe\x00\x02" * 5000 + data[2:])


def test_scans_behind_the_image_or_in_its_comments_are_none() -> None:
    """As in photos with a film behind them, or with a smaller image in their EXIF."""
    scans = b"\xff\xda\x00\x08" * 200
    data = file_of(corners(), "JPEG", progressive=True, comment=scans)
    assert data.count(b"\xff\xda") > 200
    assert measured(data) == measured(data + scans) == (6, 4)
    with pytest.raises(ImageError, match="damaged or not whole"):
        measured(data[: data.rindex(b"\xff\xda")])


@pytest.mark.parametrize("hidden", [b"\xff\x02\xff\xff", b"\xff\xd0\xff\xff", b"\xff\xd8\xff\xff"])
def test_no_scans_hide_behind_markers_without_a_length(hidden: bytes) -> None:
    data = file_of(corners(), "JPEG", progressive=True)
    begin = data.rindex(b"\xff\xda")
    with pytest.raises(ImageError, match="more than 100 scans"):
        measured(data[:begin] + hidden + data[begin:-2] * 100 + data[-2:])


@given(
    form=st.sampled_from(FORMATS),
    cut=st.integers(0, 200),
    place=st.integers(0, 2000),
    byte=st.integers(0, 255),
)
@settings(max_examples=150)
def test_damaged_files_are_measured_as_they_are_opened_or_refused(
    form: str, cut: int, place: int, byte: int
) -> None:
    whole = bytearray(file_of(corners(30, 20), form))
    whole[place % len(whole)] = byte
    data = bytes(whole[: len(whole) - cut])
    try:
        size = measured(data)
    except ImageError:
        with pytest.raises(ImageError):
            opened(data)
    else:
        assert opened(data).size == size


def test_a_lack_of_memory_is_not_the_senders_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(image_files._pillow(), "open", fails)
    with pytest.raises(MemoryError):
        measured(b"")
