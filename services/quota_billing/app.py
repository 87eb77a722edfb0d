"""Wiring of quota_billing: the only place that builds its clients."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from faststream.asgi import AsgiFastStream
from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry

from libs.adapters.mongo.bills import BillStore
from libs.adapters.mongo.use import UseStore
from libs.bus.broker import make_broker
from libs.bus.cursors import Cursors
from libs.bus.outbox import Outbox
from libs.bus.queries import serve
from libs.bus.settle import consume
from libs.bus.trim import trimmer_of
from libs.core.billing.metering import Meter
from libs.ledger.follower import Follower, Gather
from libs.service.app import Tasks, make_asgi
from libs.service.connection import connected
from libs.service.files import policy_version, read_prices
from libs.service.following import readiness, show
from schemas.billing import BillQuery, BillReply
from schemas.catalog import BY_TYPE
from schemas.subjects import REQUESTS
from services.quota_billing import handlers
from services.quota_billing.bills import BillKeeper
from services.quota_billing.files import load_quotas
from services.quota_billing.metrics import BillingMetrics
from services.quota_billing.quotas import apply_file, set_quota
from services.quota_billing.refused import RefusedQuotas
from services.quota_billing.settings import QuotaBillingSettings
from services.quota_billing.use import UseKeeper

FOLLOWER = "quota_billing"
"""The meter's follower. A bill asked for during the initial read is exact up to the sequence that it names. A record
that no valid ledger contains (Unbillable) stops the service, because a guess would be a wrong bill."""


KEEP_USE_S = 30.0
"""Interval between checks for ended slots of use."""


LEDGER_READERS = 2
"""Concurrent answers with parts of the ledger. Bills do not wait for them."""


class QuotaBilling:
    """The parts of one process, built inside the event loop."""

    follower: Follower[Meter] | None = None
    stream: JetStreamContext
    outbox: Outbox
    use: UseStore | None = None

    @property
    def meter(self) -> Meter:
        assert self.follower is not None, "the lifespan comes before the first question"
        return self.follower.projection

    def kinds(self) -> set[str] | None:
        """Kinds of device in the pool; None until the ledger is read."""
        known = self.follower is not None and self.follower.caught_up.is_set()
        return self.meter.kinds() if known else None


def make_app(settings: QuotaBillingSettings) -> AsgiFastStream:
    """The ASGI application. Raises BadFile when the price book or the teams' file is invalid."""
    prices, wanted = read_prices(settings.prices), load_quotas(settings.teams)
    policy = policy_version(settings.teams)
    registry = CollectorRegistry()
    broker = make_broker(settings.bus, "quota_billing")
    billing = QuotaBilling()
    registry.register(BillingMetrics(lambda: billing.meter if billing.follower else None, prices))
    show(registry, lambda: [billing.follower])
    tasks = Tasks()
    pool = settings.pool
    durable = f"quota_billing-{pool}"

    async def get_bill(query: BillQuery, team: str) -> BillReply:
        assert billing.follower is not None, "the lifespan comes before the first question"
        return await handlers.answer_bill(billing.follower, prices, query, team)

    serve(
        broker,
        BY_TYPE["io.baton.bill.get.query.v1"],
        get_bill,
        pool=pool,
        queue="quota_billing",
    )
    serve(
        broker,
        BY_TYPE["io.baton.use.list.query.v1"],
        lambda query, team: handlers.list_use(billing.use, query, team),
        pool=pool,
        queue="quota_billing",
    )
    serve(
        broker,
        BY_TYPE["io.baton.ledger.records.query.v1"],
        lambda query, team: handlers.read_ledger(billing.stream, pool, query, team),
        pool=pool,
        queue="quota_billing",
        workers=LEDGER_READERS,
    )
    serve(
        broker,
        BY_TYPE["io.baton.quota.list.query.v1"],
        lambda query, team: handlers.list_quotas(billing.meter, query, team),
        pool=pool,
        queue="quota_billing",
    )
    consume(
        broker,
        stream=REQUESTS,
        durable=durable,
        origin="quota_billing",
        decide=RefusedQuotas(pool, policy, partial(set_quota, pool, billing.kinds)),
        outbox=lambda: billing.outbox,
    )

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with connected(settings, "quota_billing-reader") as nats:
            js = nats.jetstream()
            billing.stream, billing.outbox = js, Outbox(js)
            billing.follower = follower = Follower(
                js, pool, Meter, name=FOLLOWER, snapshot_every=settings.snapshot_records,
                gather=Gather(0.05, busy_s=0.2),  # no rest: a bill may be asked for as soon as a job has ended
            )  # fmt: skip
            tasks.start("metering", follower.run())
            store = BillStore(settings.mongo_url)
            tasks.start("kept bills", BillKeeper(follower, store, every_s=settings.keep_bills_s).run())
            if settings.keep_use_days:
                billing.use = UseStore(settings.mongo_url, pool)
                keeper = UseKeeper(follower, js, billing.use, every_s=KEEP_USE_S, keep_days=settings.keep_use_days)
                tasks.start("kept use", keeper.run())
            tasks.start("trim of requests", trimmer_of(js, REQUESTS, durable, keep_s=settings.trim_keep_s).run())
            tasks.start(
                "quotas of the file",
                apply_file(wanted, follower, Cursors(js, "quota_billing"), billing.outbox, pool, policy),
            )
            async with tasks.until_stopped():
                yield
            store.close()
            if billing.use is not None:
                billing.use.close()

    def ready() -> dict[str, str]:
        return {"ledger": readiness(billing.follower)}

    return make_asgi(
        broker, name="quota_billing", settings=settings, lifespan=lifespan, registry=registry, ready=ready
    )  # fmt: skip
