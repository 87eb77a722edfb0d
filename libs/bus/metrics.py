"""What the bus counts. The labels are names out of our own tables: never a subject with a team, never an id."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

ERRORS = Counter("baton_bus_errors_total", "Errors that the NATS client reported, by class", ["error"], registry=None)
PUBLISHED = Counter("baton_bus_published_total", "Messages that the broker acknowledged as stored", registry=None)
RETRIED = Counter(
    "baton_bus_publish_retries_total", "Messages sent again because no acknowledgement came in time", registry=None
)
SETTLED = Counter(
    "baton_bus_settled_total", "Consumed messages by how they were settled", ["consumer", "outcome"], registry=None
)
PARKED_NOW = Gauge(
    "baton_bus_parked", "Messages put off because there is no room for what follows", ["consumer"], registry=None
)
BATCH_SECONDS = Histogram(
    "baton_bus_batch_seconds",
    "Time to decide a batch, publish its outputs and acknowledge it",
    ["consumer"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    registry=None,
)
TRIMMED = Counter("baton_bus_trims_total", "Times that a stream was trimmed", ["stream"], registry=None)
SENDERS_NOW = Gauge(
    "baton_bus_senders", "Subjects of a stream in which each sender has its own", ["stream"], registry=None
)
QUERIES = Counter("baton_bus_queries_total", "Questions by how they were answered", ["query", "status"], registry=None)
QUERY_SECONDS = Histogram(
    "baton_bus_query_seconds",
    "Time to answer a question",
    ["query"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    registry=None,
)


def register(registry: CollectorRegistry) -> None:
    """Shows these in `registry`: a service calls it once for its own."""
    counted = (ERRORS, PUBLISHED, RETRIED, SETTLED, PARKED_NOW, TRIMMED, SENDERS_NOW, QUERIES)
    for collector in (*counted, BATCH_SECONDS, QUERY_SECONDS):
        registry.register(collector)
