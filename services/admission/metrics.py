"""What admission counts."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.core.admission.fleet_shape import FleetShape
from services.admission.handlers import AdmissionResult, Handled


class Metrics:
    """Labels are closed lists."""

    def __init__(self, registry: CollectorRegistry, pools: Callable[[], Sequence[FleetShape]]) -> None:
        self.requests = Counter(
            "baton_admission_requests", "requests by what became of them", ["outcome"], registry=registry
        )
        self.refusals = Counter("baton_admission_refusals", "objections to requests", ["reason"], registry=registry)
        self.latency = Histogram(
            "baton_admission_latency_seconds",
            "from the broker's time of a request to its decision",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
            registry=registry,
        )
        jobs = Gauge("baton_admission_known_jobs", "job ids that are taken", registry=registry)
        jobs.set_function(lambda: sum(pool.jobs for pool in pools()))
        window = Gauge(
            "baton_client_key_window_seconds",
            "for how long after its job's end a client key is remembered; less than the seven days at the bound",
            registry=registry,
        )
        window.set_function(lambda: min((pool.window_us for pool in pools()), default=0) / 1e6)

    def handled(self, handled: Handled, waited_s: float) -> None:
        """A request was decided, so long after it came."""
        self.requests.labels(handled.result.value).inc()
        for why in handled.whys:
            self.refusals.labels(why.value).inc()
        self.latency.observe(max(0.0, waited_s))

    def no_room(self) -> None:
        """For what follows from a request."""
        self.requests.labels(AdmissionResult.BUSY.value).inc()
