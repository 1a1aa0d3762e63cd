"""The sizes of a batch."""

from dataclasses import dataclass

LEAST_LOGITS = 64
"""Rows of logits for which it is worth reading the weights of the head."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The sizes of a batch. A session's `WorkerReady` tells them to the scheduler."""

    num_blocks: int
    """Blocks in the pool."""
    block_size: int
    """Tokens per block."""
    max_slots: int
    """Sequences that the batch can hold at once."""
    max_model_len: int
    """Tokens of the longest sequence, prompt and output together."""
    max_step_tokens: int
    """Tokens that one step may compute at most."""
    vocab_size: int
    """Token ids are below this."""
    window: int = 0
    """Attention window: positions that a token attends to at most, its own included. 0: all positions."""
    embedding_size: int = 0
    """Numbers of an embedding."""
    num_labels: int = 0
    """Labels of a classifier, whose slots are all pooled with CLASSIFY. 0: the model is no classifier."""
    bidirectional: bool = False
    """The model is an encoder, whose slots are all pooled and whose rows are whole texts."""
    recurrent: bool = False
    """Layers keep states in blocks: see `kernels/recurrence.py`."""
    adapters: tuple[str, ...] = ()
    """Names of the LoRA adapters that slots may have."""
    images: bool = False
    """Slots may have images."""
    whole_images: bool = False
    """No row ends within an image."""
    headless: bool = False
    """The model has no head: its slots are all pooled."""

    @property
    def logits_at_once(self) -> int:
        """Most rows of logits that a step computes at a time: without drafts it has one for each slot."""
        return max(self.max_slots, LEAST_LOGITS)

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest sequence: the length of its block table."""
        return -(-self.max_model_len // self.block_size)

    @property
    def blocks_at_once(self) -> int:
        """Blocks that the longest sequence holds at once.

        With an attention window these are the blocks of the window and of one step's tokens.
        """
        if not self.window:
            return self.max_blocks
        return min(self.max_blocks, -(-(self.window + self.max_step_tokens) // self.block_size) + 1)
