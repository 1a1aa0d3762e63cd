"""Sizes and tokens of images, as the processors of transformers have them; and settings that are wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize as glm_resize
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from ops.model_directory.files import FileError
from ops.model_directory.vision import (
    LOW_DETAIL,
    AreaVision,
    EdgeVision,
    FixedVision,
    FrameVision,
    Grid,
    ImageError,
    read_vision,
)

QWEN: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 7,
    "vision_config": {"patch_size": 16},
}
GLM: dict[str, Any] = {**QWEN, "architectures": ["Glm4vForConditionalGeneration"]}
LLAVA: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "image_token_index": 10,
    "vision_config": {"model_type": "clip_vision_model", "patch_size": 14},
}
SIGLIP = {**LLAVA, "vision_config": {"model_type": "siglip_vision_model", "patch_size": 14}}
WITH_PIXTRAL = {**LLAVA, "vision_config": {"model_type": "pixtral", "patch_size": 16}}
PIXTRAL: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "image_token_index": 10,
    "spatial_merge_size": 2,
    "vision_config": {"patch_size": 14},
}
sides = st.integers(1, 9000)


def written(directory: Path, config: Any, settings: Any, name: str = "preprocessor_config.json") -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    if settings is not None:
        (directory / name).write_text(json.dumps(settings))
    return directory


@given(
    width=sides,
    height=sides,
    bounds=st.sampled_from(
        [(56 * 56, 28 * 28 * 1280), (65536, 1024 * 1024), (1, 28 * 28), (200_000, 300_000)]
    ),
    patch=st.sampled_from([14, 16]),
)
@example(width=1, height=1, bounds=(3136, 1_003_520), patch=14)
@example(width=9000, height=45, bounds=(3136, 1_003_520), patch=14)
def test_areas_are_those_of_transformers(
    width: int, height: int, bounds: tuple[int, int], patch: int
) -> None:
    assume(max(width, height) <= 200 * min(width, height))
    least, most = bounds
    vision = AreaVision(0, 2 * patch, least, most)
    grid = vision.grid(width, height)
    resized = smart_resize(height, width, 2 * patch, least, most)
    assert vision.size(grid) == resized[::-1]
    processor = Qwen2VLImageProcessorPil(patch_size=patch, min_pixels=least, max_pixels=most)
    assert len(vision.run(grid)) == processor.get_number_of_image_patches(height, width) // 4


@given(
    width=sides,
    height=sides,
    bounds=st.sampled_from([(112 * 112, 28 * 28 * 15000), (65536, 2**20), (1, 2 * 28 * 28), (10**6, 10**6)]),
    frames=st.sampled_from([1, 2]),
)
@example(width=1, height=1, bounds=(112 * 112, 28 * 28 * 15000), frames=2)
@example(width=27, height=5400, bounds=(112 * 112, 28 * 28 * 15000), frames=2)
def test_areas_of_frames_are_those_of_transformers(
    width: int, height: int, bounds: tuple[int, int], frames: int
) -> None:
    least, most = bounds
    vision = FrameVision(0, 28, least, most, frames=frames)
    try:
        resized = glm_resize(frames, height, width, frames, 28, least, most)
    except ValueError:
        with pytest.raises(ImageError, match=f"{width} by {height} pixels: .* more than 200 times"):
            vision.grid(width, height)
        return
    grid = vision.grid(width, height)
    assert vision.size(grid) == resized[::-1]
    processor = Glm4vImageProcessorPil(
        temporal_patch_size=frames, size={"shortest_edge": least, "longest_edge": most}
    )
    assert len(vision.run(grid)) == processor.get_number_of_image_patches(height, width) // 4
    low = vision.grid(width, height, low_detail=True)
    smallest = least / (frames * 28**2)  # of which more than a token may be a part
    assert low.rows * low.columns <= max((LOW_DETAIL / 28) ** 2, low.rows, low.columns, 2 * smallest)


def test_settings_of_glm(tmp_path: Path) -> None:
    assert read_vision(written(tmp_path, GLM, {}), 16384) == FrameVision(7, 28, 112 * 112, 28 * 28 * 15000)
    size = {"shortest_edge": 10, "longest_edge": 4000}
    own = {"patch_size": 2, "merge_size": 2, "temporal_patch_size": 1, "size": size}
    assert read_vision(written(tmp_path, GLM, own), 100) == FrameVision(7, 4, 10, 16 * 100, frames=1)
    fewer = read_vision(written(tmp_path, GLM, {}), 4096)
    assert fewer is not None
    assert fewer.grid(9000, 9000) == Grid(64, 64)
    for wrong, message in (
        ({"longest_edge": 9}, "shortest_edge: None"),
        ({**size, "longest_edge": 9}, "has 10"),
    ):
        with pytest.raises(FileError, match=rf"preprocessor_config\.json: .*{message}"):
            read_vision(written(tmp_path, GLM, {"size": wrong}), 4096)


@pytest.mark.parametrize(("width", "height"), [(201, 1), (1, 201), (40_001, 200)])
def test_what_is_too_narrow_is_refused(width: int, height: int) -> None:
    with pytest.raises(ImageError, match="more than 200 times"):
        AreaVision(0, 28, 3136, 10**6).grid(width, height)
    with pytest.raises(ValueError, match="aspect ratio"):
        smart_resize(height, width)


@given(
    width=sides, height=sides, longest=st.sampled_from([100, 1024, 1540]), patch=st.sampled_from([16, 28, 32])
)
def test_edges_are_those_of_transformers(width: int, height: int, longest: int, patch: int) -> None:
    vision = EdgeVision(10, patch, longest)
    grid = vision.grid(width, height)
    image = np.broadcast_to(np.uint8(0), (height, width, 3))
    resized = get_resize_output_image_size(image, (longest, longest), (patch, patch), "channels_last")
    assert vision.size(grid) == (max(patch, resized[1]), max(patch, resized[0]))
    run = vision.run(grid)
    rows = ["10 " * grid.columns] * grid.rows  # as of PixtralProcessor
    assert " ".join(map(str, run)) == "[IMG_BREAK] ".join(rows) + "[IMG_END]"
    assert len(run) == (grid.columns + 1) * grid.rows


@given(width=sides, height=sides, edges=st.booleans())
def test_low_detail_is_no_more_than_it_may_be(width: int, height: int, edges: bool) -> None:
    assume(max(width, height) <= 200 * min(width, height))
    vision = EdgeVision(0, 32, 1540) if edges else AreaVision(0, 32, 65536, 2**24)
    low, high = vision.grid(width, height, low_detail=True), vision.grid(width, height)
    # A side is at least one patch, however narrow the image is.
    longest = max(low.rows, low.columns)
    assert low.rows * low.columns <= max((LOW_DETAIL // 32) ** 2, longest)
    assert not edges or longest <= LOW_DETAIL // 32
    assert low.rows <= high.rows
    assert low.columns <= high.columns


@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_settings_are_read_where_transformers_finds_them(tmp_path: Path, name: str) -> None:
    own: dict[str, Any] = {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 2**20}}
    settings = {"image_processor": own} if name == "processor_config.json" else own
    directory = written(tmp_path, QWEN, settings, name)
    assert read_vision(directory, 4096) == AreaVision(7, 32, 65536, 2**20)


def patch_of(directory: Path) -> int:
    vision = read_vision(directory, 4096)
    assert isinstance(vision, AreaVision)
    return vision.patch


def test_a_whole_processors_settings_come_first_if_it_has_any(tmp_path: Path) -> None:
    written(tmp_path, QWEN, {"patch_size": 14})
    written(tmp_path, QWEN, {"processor_class": "x"}, "processor_config.json")
    assert patch_of(tmp_path) == 2 * 14
    written(tmp_path, QWEN, {"image_processor": {"patch_size": 16}}, "processor_config.json")
    assert patch_of(tmp_path) == 2 * 16


def test_bounds_of_pixels_come_before_the_size(tmp_path: Path) -> None:
    settings = {"min_pixels": 784, "max_pixels": 78400, "size": {"shortest_edge": 1, "longest_edge": 2}}
    assert read_vision(written(tmp_path, QWEN, settings), 4096) == AreaVision(7, 28, 784, 78400)
    assert read_vision(written(tmp_path, QWEN, {}), 4096) == AreaVision(7, 28, 56 * 56, 28 * 28 * 1280)


def test_a_large_image_has_a_bound_whatever_the_settings_say(tmp_path: Path) -> None:
    vision = read_vision(
        written(tmp_path, QWEN, {"patch_size": 16, "max_pixels": 2**30, "min_pixels": 2**29}), 4096
    )
    assert vision is not None
    grid = vision.grid(9000, 9000)
    assert grid == Grid(64, 64)
    assert grid.rows * grid.columns == 4096
    vision = read_vision(written(tmp_path, PIXTRAL, {"size": {"longest_edge": 2**30}}), 4096)
    assert vision is not None
    assert vision.grid(9000, 9000) == Grid(64, 64)


def test_pixtral_has_its_patches_from_the_model(tmp_path: Path) -> None:
    settings = {"patch_size": {"height": 16, "width": 16}, "size": {"longest_edge": 1540}}
    assert read_vision(written(tmp_path, PIXTRAL, settings), 4096) == EdgeVision(10, 28, 1540)
    assert read_vision(written(tmp_path, PIXTRAL, {}), 4096) == EdgeVision(10, 28, 1024)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {**QWEN, "architectures": ["LlamaForCausalLM"]},
        {**QWEN, "architectures": "Qwen3VLForConditionalGeneration"},
        {**QWEN, "architectures": [["x"]]},
        {name: value for name, value in QWEN.items() if name != "vision_config"},
    ],
)
def test_other_models_see_nothing(tmp_path: Path, config: dict[str, Any]) -> None:
    assert read_vision(written(tmp_path, config, {}), 4096) is None


def test_without_files_there_is_nothing_to_see(tmp_path: Path) -> None:
    assert read_vision(tmp_path, 4096) is None
    assert read_vision(written(tmp_path, QWEN, None), 4096) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch_size": 0}, "patch_size: 0 is no whole number"),
        ({"patch_size": "16"}, "patch_size"),
        ({"patch_size": float("inf")}, "patch_size"),
        ({"merge_size": True}, "merge_size"),
        ({"size": 3}, "size: 3 is no object"),
        ({"size": {"longest_edge": -1}}, "longest_edge: -1"),
        ({"size": {"longest_edge": 1e400}}, "longest_edge: inf"),
        ({"max_pixels": 10**20}, "max_pixels"),
        ({"min_pixels": [1]}, "min_pixels"),
        ({"min_pixels": 2000, "max_pixels": 1000}, "smallest image has 2000 pixels, and its largest 1000"),
        ([], "not a JSON object"),
    ],
)
def test_wrong_settings_name_their_file(tmp_path: Path, settings: Any, message: str) -> None:
    with pytest.raises(FileError, match=rf"preprocessor_config\.json.*{message}"):
        read_vision(written(tmp_path, QWEN, settings), 4096)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"size": {"height": 8, "width": 8}}, "longest_edge: None"), ({"size": {"longest_edge": 0}}, ": 0 is")],
)
def test_wrong_settings_of_pixtral_name_their_file(tmp_path: Path, settings: Any, message: str) -> None:
    with pytest.raises(FileError, match=rf"preprocessor_config\.json: .*{message}"):
        read_vision(written(tmp_path, PIXTRAL, settings), 4096)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image_token_index", None),
        ("image_token_index", -1),
        ("image_token_index", 2**40),
        ("image_token_id", "x"),
        ("spatial_merge_size", 0),
        ("vision_config", {"patch_size": [1]}),
    ],
)
def test_a_wrong_config_is_named(tmp_path: Path, key: str, value: Any) -> None:
    wrong = next(iter(value)) if isinstance(value, dict) else key
    with pytest.raises(FileError, match=rf"/config\.json.*: {wrong}: .* is no whole number"):
        read_vision(written(tmp_path, {**PIXTRAL, key: value}, {}), 4096)


@pytest.mark.parametrize(
    ("config", "settings", "side", "tokens"),
    [
        (LLAVA, {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}, 336, 576),
        (LLAVA, {"size": 224, "crop_size": 336}, 336, 576),
        (LLAVA, {"do_center_crop": False, "size": {"height": 28, "width": 28}, "crop_size": 336}, 28, 4),
        ({**LLAVA, "vision_feature_select_strategy": "full"}, {"crop_size": 336}, 336, 577),
        (SIGLIP, {"size": {"height": 384, "width": 384}}, 384, 27 * 27 - 1),
        (
            {**SIGLIP, "vision_feature_select_strategy": "full"},
            {"size": {"height": 384, "width": 384}},
            384,
            729,
        ),
    ],
)
def test_images_of_llava_have_one_size(
    tmp_path: Path, config: Any, settings: Any, side: int, tokens: int
) -> None:
    vision = read_vision(written(tmp_path, config, settings), 4096)
    assert vision == FixedVision(10, side, tokens)
    for low in (False, True):
        grid = vision.grid(300, 7, low_detail=low)
        assert vision.run(grid) == [10] * tokens
        assert vision.size(grid) is None


def test_wrong_settings_of_llava_name_their_file(tmp_path: Path) -> None:
    for settings, message in (
        ({"crop_size": 13}, "an image of 13 pixels a side has no tokens"),
        ({"size": {"shortest_edge": 336}}, "size: .* is no whole number"),
    ):
        with pytest.raises(FileError, match=rf"preprocessor_config\.json: {message}"):
            read_vision(written(tmp_path, LLAVA, settings), 4096)


def test_llava_with_other_towers(tmp_path: Path) -> None:
    full = {**WITH_PIXTRAL, "vision_feature_select_strategy": "full"}
    assert read_vision(written(tmp_path, full, {}), 4096) == EdgeVision(10, 16, 1024)
    assert read_vision(written(tmp_path, WITH_PIXTRAL, {}), 4096) is None
    other = {**LLAVA, "vision_config": {"model_type": "dinov2"}}
    assert read_vision(written(tmp_path, other, {}), 4096) is None
