"""The one rounding of money: half to even, so that many rows have no bias."""


def round_half_even(numerator: int, denominator: int) -> int:
    """numerator / denominator (both not negative), to the nearest integer, ties to the even one."""
    quotient, rest = divmod(numerator, denominator)
    return quotient + (2 * rest > denominator or (2 * rest == denominator and quotient % 2 == 1))
