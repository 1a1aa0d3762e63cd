"""A quantity over time, in a bounded number of bins however long the time gets."""

BINS = 128


class Curve:
    """Adds up what holds from one time to another; bins grow twice as wide whenever time outgrows them."""

    def __init__(self, width: int = 1) -> None:
        """`width`: of the first bins. Times are whole numbers, as `width` is."""
        self.width = width
        self._sums = [0.0] * BINS

    def add(self, begin: int, end: int, value: float) -> None:
        """`value` holds from `begin` until `end`, beside what else has been added."""
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
        """The mean of each bin until `end`, of which the last may be only a part."""
        full = [(place, min(self.width, end - place * self.width)) for place in range(BINS)]
        return [self._sums[place] / width for place, width in full if width > 0]
