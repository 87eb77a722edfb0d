"""Questions whose answers lie in MongoDB: who asks is told in time that it does not answer; that is no error of the service."""

from collections.abc import Iterator
from contextlib import contextmanager

from libs.adapters.mongo.store import StoreAway, asked
from libs.bus.queries import AskAgain


@contextmanager
def asks_mongo(service: str, what: str, within_s: float) -> Iterator[None]:
    """`what` is kept there, by `service`. Raises AskAgain in place of StoreAway, and where MongoDB has not told all of it
    within `within_s`: less than a client waits."""
    try:
        with asked(within_s):
            yield
    except StoreAway:
        raise AskAgain(f"MongoDB, which keeps {what}, does not answer {service}: ask again") from None
