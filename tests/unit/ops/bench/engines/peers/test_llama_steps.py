"""llama.cpp's steps: each token is computed once, in its place, and sequences do not outlive their turn."""

from collections.abc import Sequence

from ops.bench.engines.peers.llama_server import Token
from ops.bench.engines.peers.llama_steps import measured


class Model:
    """Keeps the lengths of sequences, and the number of tokens of each step."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.steps: list[int] = []

    def compute(self, tokens: Sequence[Token]) -> list[int]:
        self.steps.append(len(tokens))
        for token in tokens:
            assert token.position == self.lengths.get(token.sequence, 0)
            self.lengths[token.sequence] = token.position + 1
        return [0 for token in tokens if token.is_last]

    def forget(self, sequence: int) -> None:
        del self.lengths[sequence]


def test_users_decode_together_behind_their_prompts() -> None:
    model = Model()
    found = measured(model, (1, 3), prompt=5, long=9, steps=4, seed=1)
    assert model.steps == [5, *[1] * 4, *[5] * 3, *[3] * 4, 9]
    assert not model.lengths
    assert found.keys() == {"1 users", "3 users", "prompt of 9"}
    assert all(milliseconds > 0 for milliseconds in found.values())
