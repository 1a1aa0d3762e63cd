"""Names of block contents."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.prefix import extend_chain, root

TOKENS = st.lists(st.integers(0, 1), max_size=12)


def chain(tokens: list[int], salt: str = "", block_size: int = 2) -> list[bytes]:
    names: list[bytes] = []
    extend_chain(names, root(salt), array("i", tokens), len(tokens) // block_size, block_size)
    return names


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
