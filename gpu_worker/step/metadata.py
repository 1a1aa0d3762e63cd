"""Where the tokens of a step are, from its rows."""

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.attention import StepMetadata
from gpu_worker.kernels.rows import Rows, SlotTables
from gpu_worker.machine.transfer import indices
from gpu_worker.step.images import SlotImages


def describe(
    rows: Rows, tables: SlotTables, device: torch.device, images: SlotImages | None = None
) -> tuple[StepMetadata, Tensor, Tensor]:
    """The metadata of rows, their token ids int32 [tokens], and their slots int64 [rows].

    `images`: those of slots, if their tokens lie in grids.

    All numbers go to the device in one copy. The device computes the rest from them.
    """
    token_slots, positions, query_starts = rows.tokens()
    contexts = rows.starts + rows.counts
    turned = () if images is None else (images.lines(rows, token_slots, positions),)
    parts = (token_slots, positions, rows.slots, contexts, query_starts, *turned)
    sent = indices(np.concatenate(parts, dtype=np.int64, casting="same_kind"), device)
    d_slots, d_positions, d_rows, d_contexts, d_starts, *d_turned = torch.split(
        sent, [len(part) for part in parts]
    )
    widest = -(-int(contexts.max()) // tables.block_size)
    tokens, entries = tables.lookup(d_slots, d_positions)
    step = StepMetadata(
        decodes=int(np.count_nonzero(rows.counts == 1)),
        query_lengths=tuple(rows.counts.tolist()),
        context_lengths=tuple(contexts.tolist()),
        query_starts=d_starts.int(),
        contexts=d_contexts.int(),
        block_tables=tables.blocks[d_rows, :widest],
        positions=d_positions,
        kv_entries=entries,
        turned=d_turned[0] if d_turned else None,
    )
    return step, tokens, d_rows
