"""A quantity over time, in a bounded number of bins for any length of time."""

BINS = 128


class Curve:
    """Integrals of a step function over `BINS` equal bins. When time exceeds the bins their width doubles."""

    def __init__(self, width: int = 1) -> None:
        """`width`: time of each bin at first. All times are whole numbers."""
        self.width = width
        self._sums = [0.0] * BINS

    def add(self, begin: int, end: int, value: float) -> None:
        """Add `value` to the function from `begin` until `end`."""
        while end > self.width * BINS:
            self.width *= 2
            pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
            self._sums = [*(one + other for one, other in pairs), *[0.0] * (BINS // 2)]
        while begin < end:
            place = begin // self.width
            until = min(end, (place + 1) * self.width)
            self._sums[place] += value * (until - begin)
            begin = until

    def means(self, end: int) -> list[float]:
        """The function's mean in each bin until `end`. The last bin may end there."""
        full = [(place, min(self.width, end - place * self.width)) for place in range(BINS)]
        return [self._sums[place] / width for place, width in full if width > 0]
