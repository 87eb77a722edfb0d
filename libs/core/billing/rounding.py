"""The one rounding rule for money: half to even, so that sums of many rows have no bias."""


def round_half_even(numerator: int, denominator: int) -> int:
    """numerator / denominator (both non-negative), to the nearest integer, ties to even."""
    quotient, rest = divmod(numerator, denominator)
    return quotient + (2 * rest > denominator or (2 * rest == denominator and quotient % 2 == 1))
