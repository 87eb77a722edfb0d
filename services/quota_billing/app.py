"""Quota_billing's wiring: the only place that builds its clients."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from faststream.asgi import AsgiFastStream
from prometheus_client import CollectorRegistry

from libs.bus.broker import make_broker
from libs.bus.connect import close, connect
from libs.bus.cursors import Cursors
from libs.bus.outbox import Outbox
from libs.bus.queries import serve
from libs.bus.settle import consume
from libs.bus.streams import bind
from libs.service.app import Tasks, make_asgi
from schemas.catalog import BY_TYPE
from schemas.subjects import REQUESTS
from services.quota_billing import handlers
from services.quota_billing.files import load_prices, load_quotas
from services.quota_billing.metering import Metering
from services.quota_billing.metrics import BillingMetrics
from services.quota_billing.quotas import apply_file, set_quota
from services.quota_billing.settings import QuotaBillingSettings


class QuotaBilling:
    """What one process holds; made once the event loop runs."""

    metering: Metering | None = None
    outbox: Outbox

    @property
    def read(self) -> Metering:
        assert self.metering is not None, "the lifespan comes before the first question"
        return self.metering


def make_app(settings: QuotaBillingSettings) -> AsgiFastStream:
    """The service as an ASGI application. Raises BadFile when the price book or the teams' file cannot be used."""
    prices, wanted = load_prices(settings.prices), load_quotas(settings.teams)
    registry = CollectorRegistry()
    broker = make_broker(settings.nats_url, "quota_billing")
    billing = QuotaBilling()
    registry.register(BillingMetrics(lambda: billing.metering, prices))
    tasks = Tasks()
    pool = settings.pool
    serve(
        broker,
        BY_TYPE["io.baton.bill.get.query.v1"],
        lambda query, team: handlers.get_bill(billing.read.meter, prices, query, team),
        queue="quota_billing",
    )
    serve(
        broker,
        BY_TYPE["io.baton.quota.list.query.v1"],
        lambda query, team: handlers.list_quotas(billing.read.meter, query, team),
        queue="quota_billing",
    )
    consume(
        broker,
        stream=REQUESTS,
        durable="quota_billing",
        filter_subject="baton.cmd.quota.v1.*.*",
        origin="quota_billing",
        decide=partial(set_quota, pool),
        outbox=lambda: billing.outbox,
    )

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        nats = await connect(settings.nats_url, name="quota_billing-reader", die_on_close=True)
        js = nats.jetstream()
        await bind(js, [pool])
        billing.outbox = Outbox(js)
        billing.metering = Metering(js, pool, snapshot_records=settings.snapshot_records)
        tasks.start("metering", billing.metering.run())
        tasks.start("quotas of the file", apply_file(wanted, billing.metering, Cursors(js), billing.outbox, pool))
        async with tasks.until_stopped():
            yield
        await close(nats)

    def ready() -> dict[str, str]:
        if not billing.read.caught_up.is_set():
            return {"ledger": f"{billing.read.lag} records to read"}
        return {"ledger": billing.read.problem or "ok"}

    return make_asgi(
        broker, name="quota_billing", settings=settings, lifespan=lifespan, registry=registry, ready=ready
    )  # fmt: skip
