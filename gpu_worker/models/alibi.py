"""Linear biases in place of position embeddings (ALiBi): Press et al. 2022, *Train Short, Test Long*."""


def slopes(heads: int, steepest: float = 8.0) -> tuple[float, ...]:
    """What each head's scores lose for every position between query and key.

    From 2^(-steepest / heads) down to 2^-steepest, each by the same factor, if `heads` is a power of two.
    Otherwise those of the power below it come first; then, as many as are missing, every other one of the
    power above it.
    """
    below = 1 << (heads.bit_length() - 1)
    first = [2 ** (-steepest * number / below) for number in range(1, below + 1)]
    between = [2 ** (-steepest * number / (2 * below)) for number in range(1, 2 * (heads - below), 2)]
    return (*first, *between)
