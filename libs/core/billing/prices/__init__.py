"""The price book: what is wrong with one (`check`), what a device costs when (`lookup`), what a use comes to (`rating`),
and what another one leaves as it was (`unchanged`)."""

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
