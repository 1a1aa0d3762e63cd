"""Logits of every token that a runner computes."""

from typing import Any

from torch import Tensor


def watch_logits(runner: Any) -> dict[tuple[int, int], Tensor]:
    """By slot and position the logits of all tokens from now on, not only of those that sample."""
    seen, places = {}, []
    metadata, model = runner.batch.metadata, runner.model

    def noting_metadata(rows):
        places[:] = [
            (slot, position)
            for slot, start, count in zip(rows.slots, rows.starts, rows.counts, strict=True)
            for position in range(start, start + count)
        ]
        return metadata(rows)

    class Watched:
        logits = model.logits

        def __call__(self, tokens, step, caches):
            hidden = model(tokens, step, caches)
            seen.update(zip(places, model.logits(hidden), strict=True))
            return hidden

    runner.batch.metadata, runner.model = noting_metadata, Watched()
    return seen
