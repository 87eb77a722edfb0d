"""The price book: what is wrong with one (`check`), what a device costs when (`lookup`), what a use comes to (`rating`)."""

from libs.core.billing.prices.check import RateProblem, problems
from libs.core.billing.prices.lookup import PriceList, Quote
from libs.core.billing.prices.rating import Amount, Rater

__all__ = ["Amount", "PriceList", "Quote", "RateProblem", "Rater", "problems"]
