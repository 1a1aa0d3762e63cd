"""What `quire up` says of a worker."""

import pytest

from ops.launcher.worker_description import describe

KNOWN = {"model": "fox", "device": "cpu", "dtype": "float32", "arithmetic": "avx2", "block_size": 16}
SAID = "fox on cpu in float32 (avx2); KV for 16,000 tokens: "


@pytest.mark.parametrize(
    ("slots", "longest", "said"),
    [
        (4, 2000, "4 requests of 2,000 at once"),
        (64, 2000, "8 requests of 2,000 at once, or 64 of 240"),
        (64, 2001, "7 requests of 2,001 at once, or 64 of 240"),
        (2, 999_999, "0 requests of 999,999 at once, or 2 of 8,000"),
    ],
)
def test_how_many_requests_fit(slots: int, longest: int, said: str) -> None:
    assert describe({**KNOWN, "blocks": 1000, "slots": slots, "longest": longest}) == SAID + said


def test_a_worker_of_another_version_says_less() -> None:
    assert describe({"model": "fox", "device": "cuda", "dtype": "bfloat16"}) == "fox on cuda in bfloat16"
    assert describe({**KNOWN, "blocks": 0}) == "fox on cpu in float32 (avx2)"
