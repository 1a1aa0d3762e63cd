"""Linear biases in place of position embeddings (ALiBi): Press et al. 2022, *Train Short, Test Long*."""


def slopes(heads: int, steepest: float = 8.0) -> tuple[float, ...]:
    """Slope of each head: its scores are lowered by the slope for each position between query and key.

    If `heads` is a power of two, slopes are a geometric series from 2^(-steepest / heads) to 2^-steepest.
    Otherwise the slopes of the next lower power of two come first, then every other slope of the next higher
    power of two.
    """
    below = 1 << (heads.bit_length() - 1)
    first = [2 ** (-steepest * number / below) for number in range(1, below + 1)]
    between = [2 ** (-steepest * number / (2 * below)) for number in range(1, 2 * (heads - below), 2)]
    return (*first, *between)
