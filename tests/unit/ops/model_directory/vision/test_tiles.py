"""Images that are cut into tiles, as the processors of transformers cut them."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from ops.model_directory.files import FileError
from ops.model_directory.vision import (
    AnyResVision,
    CropVision,
    Grid,
    ImageError,
    SplitVision,
    Vision,
    read_vision,
)

SMOL: dict[str, Any] = {
    "architectures": ["SmolVLMForConditionalGeneration"],
    "image_token_id": 7,
    "scale_factor": 4,
    "vision_config": {"patch_size": 16},
}
SMOL_SETTINGS = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
INTERN: dict[str, Any] = {
    "architectures": ["InternVLForConditionalGeneration"],
    "image_token_id": 7,
    "downsample_ratio": 0.5,
    "vision_config": {"patch_size": [14, 14]},
}
INTERN_SETTINGS: dict[str, Any] = {"size": {"height": 448, "width": 448}, "crop_to_patches": False}
LLAVA: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "image_token_index": 7,
    "vision_config": {"model_type": "clip_vision_model", "patch_size": 14, "image_size": 336},
}
LLAVA_NEXT = {**LLAVA, "architectures": ["LlavaNextForConditionalGeneration"]}
sides = st.integers(1, 500)


def read(directory: Path, config: Any, settings: Any, most: int = 4096) -> Vision | None:
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    return read_vision(directory, most)


def split(width: int, height: int, vision: SplitVision, **options: Any) -> tuple[int, int, int]:
    """Rows and columns of tiles, and how many images the tower takes, of transformers."""
    processor = SmolVLMImageProcessorPil(
        size={"longest_edge": vision.longest}, max_image_size={"longest_edge": vision.tile}
    )
    found = processor(
        images=[Image.new("L", (width, height))],
        return_tensors="pt",
        return_row_col_info=True,
        **options,
    )
    ((rows,),), ((columns,),) = found["rows"], found["cols"]
    return rows, columns, found["pixel_values"].shape[1]


@given(width=sides, height=sides, longest=st.sampled_from([8, 21, 30, 32]), tile=st.sampled_from([8, 12]))
@example(width=500, height=1, longest=32, tile=8)
@example(width=21, height=21, longest=21, tile=8)
def test_tiles_are_those_of_transformers(width: int, height: int, longest: int, tile: int) -> None:
    vision = SplitVision(7, tile, 4, longest, tiles=100)
    grid = vision.grid(width, height)
    rows, columns, images = split(width, height, vision)
    assert (rows, columns) == ((grid.rows, grid.columns) if images > 1 else (0, 0))
    text = get_image_prompt_string(rows, columns, 4, "<fake_token_around_image>", "<image>", "<global-img>")
    run = vision.run(grid)
    assert "".join("<image>" if part == 7 else str(part) for part in run) == text
    assert run.count(7) == 4 * images
    assert {part for part in run if part != 7} <= set(vision.texts)
    assert split(width, height, vision, **vision.options(grid)) == (rows, columns, images)


@given(width=sides, height=sides, tiles=st.integers(1, 17), low=st.booleans())
def test_where_there_are_fewer_tiles_the_image_is_made_smaller(
    width: int, height: int, tiles: int, low: bool
) -> None:
    vision = SplitVision(7, 8, 4, 32, tiles)
    grid = vision.grid(width, height, low_detail=low)
    rows, columns, images = split(width, height, vision, **vision.options(grid))
    assert (max(rows, 1), max(columns, 1)) == (grid.rows, grid.columns)
    assert images <= (1 if low else tiles)
    assert vision.run(grid).count(7) == 4 * images
    assert vision.run(vision.grid(*vision.largest)).count(7) >= 4 * images


def test_settings_of_smolvlm(tmp_path: Path) -> None:
    vision = read(tmp_path, SMOL, SMOL_SETTINGS)
    assert vision == SplitVision(7, 512, 64, 2048, 64)
    assert vision.grid(4000, 3000) == Grid(3, 4)
    assert vision.grid(4000, 3000, low_detail=True) == Grid(1, 1)
    fewer = read(tmp_path, SMOL, SMOL_SETTINGS, most=64 * 8)
    assert fewer is not None
    assert fewer.grid(4000, 3000) == Grid(2, 2)
    assert fewer.grid(4000, 1000) == Grid(1, 4)
    whole = read(tmp_path, SMOL, {**SMOL_SETTINGS, "do_image_splitting": False})
    assert whole is not None
    assert whole.grid(4000, 3000) == Grid(1, 1)
    assert "\n" not in whole.texts


def test_settings_of_idefics3(tmp_path: Path) -> None:
    """Those of transformers where a file has none. A side of 384 pixels has 27 patches and 9 tokens."""
    config = {
        **SMOL,
        "architectures": ["Idefics3ForConditionalGeneration"],
        "vision_config": {"patch_size": 14},
    }
    assert read(tmp_path, {**config, "scale_factor": 2}, {}) == SplitVision(7, 364, 169, 1456, 24)
    larger = {"size": {"longest_edge": 1536}, "max_image_size": {"longest_edge": 384}}
    assert read(tmp_path, {**config, "scale_factor": 3}, larger) == SplitVision(7, 384, 81, 1536, 50)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_image_size": {"longest_edge": 513}}, "max_image_size: tiles of 513 pixels"),
        ({"max_image_size": {"longest_edge": 500}}, ".* no whole number of tokens"),
        ({"do_image_splitting": "no"}, "do_image_splitting: no is neither true nor false"),
        ({"size": {"longest_edge": 0}}, "longest_edge: 0 is no whole number"),
    ],
)
def test_wrong_settings_name_their_file(tmp_path: Path, settings: Any, message: str) -> None:
    with pytest.raises(FileError, match=rf"preprocessor_config\.json: {message}"):
        read(tmp_path, SMOL, {**SMOL_SETTINGS, **settings})


@pytest.mark.parametrize(
    ("config", "settings", "tokens"),
    [
        (SMOL, SMOL_SETTINGS, 64),
        (INTERN, INTERN_SETTINGS, 256),
        (LLAVA_NEXT, {}, 2928),
        (LLAVA, {"crop_size": 336}, 576),
    ],
)
def test_text_alone_is_served_where_an_image_has_too_many_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: Any, settings: Any, tokens: int
) -> None:
    assert read(tmp_path, config, settings, most=tokens) is not None
    assert not caplog.messages
    assert read(tmp_path, config, settings, most=tokens - 1) is None
    (message,) = caplog.messages
    what = f"an image may have {tokens} tokens, and QUIRE_IMAGE_TOKENS is {tokens - 1}: text alone is served"
    assert what in message


@given(width=sides, height=sides, least=st.integers(1, 3), most=st.integers(3, 12), low=st.booleans())
@example(width=24, height=24, least=1, most=12, low=False)
@example(width=500, height=1, least=3, most=3, low=False)
def test_crops_are_those_of_transformers(width: int, height: int, least: int, most: int, low: bool) -> None:
    vision = CropVision(7, 8, 4, least, most)
    processor = GotOcr2ImageProcessorPil(
        size={"height": 8, "width": 8}, min_patches=least, max_patches=most, crop_to_patches=True
    )
    grid = vision.grid(width, height, low_detail=low)
    options = vision.options(grid)
    found = processor(images=[Image.new("L", (width, height))], return_tensors="pt", **options)
    (tiles,) = found["num_patches"]
    if low:
        assert tiles == 1
    else:
        assert tiles == processor.get_number_of_image_patches(height, width)
    assert vision.run(grid) == ["<img>", *[7] * (4 * tiles), "</img>"]
    assert grid.rows * grid.columns == max(tiles - 1, 1)
    assert grid.rows * grid.columns <= most
    assert len(vision.run(vision.grid(*vision.largest))) >= len(vision.run(grid))


def test_the_place_of_a_crop_is_that_of_the_grid() -> None:
    image = Image.new("L", (24, 16))
    image.paste(255, (8, 0, 16, 8))
    vision = CropVision(7, 8, 4, 1, 12)
    grid = vision.grid(24, 16)
    assert grid == Grid(2, 3)
    processor = GotOcr2ImageProcessorPil(size={"height": 8, "width": 8})
    found = processor(images=[image], return_tensors="pt", **vision.options(grid))["pixel_values"]
    assert [bool((tile > 0).all()) for tile in found] == [False, True, *[False] * 5]


def test_settings_of_internvl(tmp_path: Path) -> None:
    assert read(tmp_path, INTERN, INTERN_SETTINGS) == CropVision(7, 448, 256, 1, 12)
    assert read(tmp_path, INTERN, INTERN_SETTINGS, most=1024) == CropVision(7, 448, 256, 1, 3)
    fewer = read(tmp_path, INTERN, {**INTERN_SETTINGS, "min_patches": 2, "max_patches": 6}, most=511)
    assert fewer == CropVision(7, 448, 256, 1, 1)
    assert fewer.grid(9000, 3000) == Grid(1, 1)
    assert fewer.grid(*fewer.largest) == Grid(1, 1)
    plain = {**INTERN, "vision_config": {"patch_size": 32}}
    assert read(tmp_path, plain, {}) == CropVision(7, 384, 36, 1, 12)


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"downsample_ratio": 0.3}, {}, "/config.json: downsample_ratio: 0.3 of 32 patches"),
        ({"downsample_ratio": 0}, {}, "/config.json: downsample_ratio: 0 of 32 patches"),
        ({"downsample_ratio": "x"}, {}, "/config.json: downsample_ratio: x of 32 patches"),
        ({"vision_config": {"patch_size": [14, 7]}}, {}, r"/config.json: patch_size: \[14, 7\] is no whole"),
        ({}, {"size": {"height": 448, "width": 4}}, r"preprocessor_config.json: size: .* is no whole"),
        ({}, {"size": {"height": 0, "width": 0}}, r"preprocessor_config.json: size: 0 is no whole"),
        ({}, {"max_patches": 0}, "preprocessor_config.json: max_patches: 0 is no whole"),
    ],
)
def test_wrong_settings_of_internvl_name_their_file(
    tmp_path: Path, changes: Any, settings: Any, message: str
) -> None:
    with pytest.raises(FileError, match=message):
        read(tmp_path, {**INTERN, **changes}, {**INTERN_SETTINGS, **settings})


def tokens_of(width: int, height: int, vision: AnyResVision) -> int:
    """Of transformers, with the class token."""
    processor = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=[list(size) for size in vision.sizes]),
        patch_size=vision.patch,
        num_additional_image_tokens=1,
    )
    processor._get_unpadded_features = partial(LlavaNextProcessor._get_unpadded_features, processor)
    tile = vision.tile
    found: int = LlavaNextProcessor._get_number_of_features(processor, height, width, tile, tile)
    return found


@given(
    width=st.integers(1, 3000),
    height=st.integers(1, 3000),
    sizes=st.sampled_from(
        [
            ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)),
            ((336, 336),),
            ((1008, 1008), (336, 672)),
        ]
    ),
)
@example(width=3000, height=30, sizes=((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)))
@example(width=640, height=480, sizes=((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)))
def test_tokens_of_the_best_size_are_those_of_transformers(
    width: int, height: int, sizes: tuple[tuple[int, int], ...]
) -> None:
    vision = AnyResVision(7, 14, 336, sizes)
    try:
        grid = vision.grid(width, height)
    except ImageError:
        assert max(width, height) > 20 * min(width, height)
        return
    run = vision.run(grid)
    assert run == [7] * (tokens_of(width, height, vision) - 1)
    assert grid.rows * grid.columns <= len(run)
    assert len(run) <= len(vision.run(vision.grid(*vision.largest)))


def test_an_image_of_which_no_row_is_left_is_refused() -> None:
    for width, height in ((3000, 3), (3, 3000)):
        with pytest.raises(ImageError, match=f"{width} by {height} pixels: one side is much longer"):
            AnyResVision(7, 14, 336, ((336, 672), (672, 336))).grid(width, height)


def test_settings_of_llava_next(tmp_path: Path) -> None:
    usual = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
    assert read(tmp_path, LLAVA_NEXT, {}) == AnyResVision(7, 14, 336, usual)
    one = read(tmp_path, {**LLAVA_NEXT, "image_grid_pinpoints": [[336, 672]]}, {})
    assert one == AnyResVision(7, 14, 336, ((336, 672),))
    assert one.options(Grid(1, 1)) == {"image_grid_pinpoints": [[336, 672]]}
    assert read(tmp_path, {**LLAVA_NEXT, "vision_feature_select_strategy": "full"}, {}) is None
    for wrong, message in (
        ([[336]], r"\[336\] is no height"),
        (3, "3 is no"),
        ([[340, 672]], "not all are whole"),
    ):
        with pytest.raises(FileError, match=rf"/config\.json: image_grid_pinpoints: {message}"):
            read(tmp_path, {**LLAVA_NEXT, "image_grid_pinpoints": wrong}, {})
