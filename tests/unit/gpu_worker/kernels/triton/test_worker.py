"""What every back end must do, done by this one: some of the worker's tests, in the interpreter."""

from tests.unit.gpu_worker.test_greedy import (  # noqa: F401
    test_a_shared_prefix_is_not_computed_again,
    test_chunks_and_decodes_in_one_ragged_step,
    test_logits_at_every_position,
)
