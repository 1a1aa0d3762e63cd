"""Files in base64."""

import tracemalloc

import pytest

from gateway.api.messages.attached import decoded


@pytest.mark.parametrize(
    "encoded", ["QSBmb3g=", "QSBmb3g", "QSBm\nb3g=", " QSBm\r\n\tb3 g\n", "Q S B m b 3 g = "]
)
def test_white_space_and_padding(encoded: str) -> None:
    assert decoded(encoded) == b"A fox"


@pytest.mark.parametrize("encoded", ["QSBmb3g!", "QSBmb", "QSBm\u2003b3g=", "QS=Bmb3g"])
def test_what_is_no_base64(encoded: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        decoded(encoded)


def test_white_space_between_all_letters_takes_little_memory() -> None:
    encoded = "aa " * 2**18
    tracemalloc.start()
    try:
        assert len(decoded(encoded)) == 3 * 2**17
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * len(encoded)
