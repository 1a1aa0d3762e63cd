"""Names of block contents."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.images import Image, images_between
from scheduler_svc.core.prefix import extend_chain, partial_names, root
from tests.support.programs import images_at

TOKENS = st.lists(st.integers(0, 1), max_size=12)
IMAGES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 2)), max_size=3).map(
    lambda places: images_at(places, 12)
)


def chain(
    tokens: list[int], salt: str = "", block_size: int = 2, images: Sequence[Image] = ()
) -> list[bytes]:
    names: list[bytes] = []
    blocks = len(tokens) // block_size
    extend_chain(names, root(salt), array("i", tokens), blocks, block_size, images)
    return names


def partial(tokens: list[int], ends: list[int], images: Sequence[Image]) -> list[bytes]:
    return partial_names([], root(""), array("i", tokens), ends, 4, images)


def seen(images: Sequence[Image], end: int) -> list[tuple[int, ...] | bytes]:
    """What is seen of images in the first `end` positions."""
    some = [image for image in images if image.position < end]
    return [
        *((image.position, image.tokens, image.rows, image.columns) for image in some),
        *(image.digest for image in some),
    ]


@given(first=TOKENS, second=TOKENS)
def test_names_are_equal_exactly_as_far_as_the_tokens_are(first: list[int], second: list[int]) -> None:
    for number, (one, other) in enumerate(zip(chain(first), chain(second), strict=False)):
        end = 2 * (number + 1)
        assert (one == other) == (first[:end] == second[:end])


@given(tokens=TOKENS, split=st.integers(0, 6))
def test_a_chain_may_be_extended_bit_by_bit(tokens: list[int], split: int) -> None:
    blocks = len(tokens) // 2
    names: list[bytes] = []
    for count in (min(split, blocks), blocks, 0):
        extend_chain(names, root("salt"), array("i", tokens), count, 2)
    assert names == chain(tokens, "salt")


def test_salts_keep_tenants_apart() -> None:
    assert not set(chain([1] * 8, "a")) & set(chain([1] * 8, "b"))


def test_adapters_have_blocks_of_their_own() -> None:
    roots = [root(salt, adapter) for salt in ("", "a") for adapter in ("", "a", "b")]
    assert len(set(roots)) == 6


def test_equal_blocks_at_different_places_have_different_names() -> None:
    assert len(set(chain([1] * 8))) == 4


@given(first=TOKENS, second=TOKENS, one=IMAGES, other=IMAGES)
def test_with_images_names_are_equal_exactly_as_far_as_tokens_and_images_are(
    first: list[int], second: list[int], one: tuple[Image, ...], other: tuple[Image, ...]
) -> None:
    pairs = zip(chain(first, images=one), chain(second, images=other), strict=False)
    for number, (name, another) in enumerate(pairs):
        end = 2 * (number + 1)
        alike = first[:end] == second[:end] and seen(one, end) == seen(other, end)
        assert (name == another) == alike


@given(tokens=st.lists(st.integers(0, 1), min_size=12, max_size=12), images=IMAGES, other=IMAGES)
def test_partial_names_are_equal_exactly_as_far_as_images_are(
    tokens: list[int], images: tuple[Image, ...], other: tuple[Image, ...]
) -> None:
    for full in (0, 4, 8):
        ends = [full + 1, full + 2, full + 3]
        names = partial(tokens, ends, images)
        assert names == [partial(tokens, [end], images)[0] for end in ends]
        for end, name, another in zip(ends, names, partial(tokens, ends, other), strict=True):
            assert (name == another) == (seen(images, end) == seen(other, end))


@given(tokens=TOKENS, split=st.integers(0, 6), images=IMAGES)
def test_a_chain_with_images_may_be_extended_bit_by_bit(
    tokens: list[int], split: int, images: tuple[Image, ...]
) -> None:
    blocks = len(tokens) // 2
    names: list[bytes] = []
    for count in (min(split, blocks), blocks):
        extend_chain(names, root(""), array("i", tokens), count, 2, images)
    assert names == chain(tokens, images=images)


def test_blocks_before_the_first_image_have_the_names_that_they_have_without() -> None:
    tokens, images = [1] * 10, [Image(5, 2, 1, 2, bytes(32), "a")]
    plain, named = chain(tokens), chain(tokens, images=images)
    assert [one == other for one, other in zip(plain, named, strict=True)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    # What is plain is what it has always been.
    first = blake2b(root("") + array("i", [1, 1]).tobytes(), digest_size=32).digest()
    assert plain[0] == first


@pytest.mark.parametrize(
    "change",
    [{"position": 3, "tokens": 3}, {"tokens": 3}, {"rows": 2, "columns": 1}, {"digest": b"\1" * 32}],
)
def test_whatever_is_seen_counts_and_where_the_file_lies_does_not(change: dict[str, int]) -> None:
    image = Image(2, 4, 1, 2, bytes(32), "a")
    named = chain([1] * 8, images=[image])
    assert chain([1] * 8, images=[replace(image, name="b")]) == named
    other = chain([1] * 8, images=[replace(image, **change)])
    assert other[0] == named[0]
    assert not set(other[1:]) & set(named[1:])


def test_a_text_cannot_pose_as_an_image() -> None:
    """Not even one whose tokens spell what is hashed of an image."""
    image = Image(2, 2, 1, 2, bytes(range(32)), "a")
    tokens = [1, 1, 1, 1]
    spelled = array("i", image.content).tolist()
    named = chain(tokens, images=[image])
    assert named[1] not in chain([*tokens, *spelled]), "the tokens that follow"
    assert named[1] not in chain([*tokens, *spelled], block_size=len(tokens) + len(spelled))
    hashed = blake2b(chain(tokens)[1] + image.content, digest_size=32).digest()
    assert named[1] != hashed, "and its parent is named"


@given(images=IMAGES, start=st.integers(0, 12), length=st.integers(0, 12))
def test_images_between(images: tuple[Image, ...], start: int, length: int) -> None:
    places = range(start, start + length)
    expected = [each for each in images if any(place in places for place in range(each.position, each.end))]
    assert list(images_between(images, start, start + length)) == expected
