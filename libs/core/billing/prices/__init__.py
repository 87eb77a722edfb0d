"""The price book: its validation (`check`), prices at a moment (`lookup`), the cost of a use (`rating`), and what a new
book leaves unchanged (`unchanged`)."""

from libs.core.billing.prices.check import RateProblem, problems, unknown_classes
from libs.core.billing.prices.lookup import PricedBy, PriceList, Quote
from libs.core.billing.prices.rating import Amount, Rater
from libs.core.billing.prices.unchanged import Unchanged

__all__ = [
    "Amount",
    "PriceList",
    "PricedBy",
    "Quote",
    "RateProblem",
    "Rater",
    "Unchanged",
    "problems",
    "unknown_classes",
]
