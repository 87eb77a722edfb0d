"""Read-only questions about one pool: its figures, nodes, devices, queues, bills and quotas, and dry runs."""

from nats.aio.client import Client

from libs.client.asking import ask
from libs.client.sending import valid
from libs.client.where import Place
from schemas.billing import BillQuery, BillReply, QuotaSnapshot
from schemas.explanations import PlanQuery, PlanReply
from schemas.jobs import JobSpec
from schemas.pool_status import DeviceList, DeviceListQuery, NodeList, NodeListQuery, PoolStatus, PoolStatusQuery
from schemas.proofs import LedgerPart, LedgerRead
from schemas.queue_status import QueueList, QueueListQuery
from schemas.use import UseQuery, UseReply


class PoolQuestions:
    """Each method is one question to the service that owns the answer, and raises `libs.client.errors.ClientError`."""

    def __init__(self, nats: Client, place: Place) -> None:
        self.nats = nats
        self.place = place

    async def plan(self, spec: JobSpec, *, steps: float | None = None) -> PlanReply:
        """What would become of a job if it were submitted now to the pool that it names, or else to ours; nothing is
        submitted.

        Args:
            steps: training steps that it has to do, for time and cost.
        """
        reply: PlanReply = await ask(
            self.nats,
            "job.plan",
            self.place,
            valid(PlanQuery, job=spec, steps=steps),
            pool=spec.pool or "",
            timeout_s=10.0,
        )
        return reply

    async def bill(self, query: BillQuery | None = None) -> BillReply:
        """Usage and cost."""
        reply: BillReply = await ask(self.nats, "bill.get", self.place, query or BillQuery(), timeout_s=30.0)
        return reply

    async def use(self, query: UseQuery | None = None) -> UseReply:
        """What jobs held against what their devices did, of the hours that are kept."""
        reply: UseReply = await ask(self.nats, "use.list", self.place, query or UseQuery(), timeout_s=30.0)
        return reply

    async def ledger_after(self, seq: int) -> LedgerPart:
        """The messages of the ledger that follow `seq`, as many as go into one answer; for finance."""
        query = LedgerRead(after_seq=seq)
        reply: LedgerPart = await ask(self.nats, "ledger.records", self.place, query, timeout_s=30.0)
        return reply

    async def quotas(self) -> QuotaSnapshot:
        """Quotas and present use."""
        reply: QuotaSnapshot = await ask(self.nats, "quota.list", self.place, PoolStatusQuery())
        return reply

    async def nodes(self) -> NodeList:
        """The pool's machines."""
        reply: NodeList = await ask(self.nats, "node.list", self.place, NodeListQuery())
        return reply

    async def devices(self, node: str = "") -> DeviceList:
        """The pool's devices, or one node's."""
        query = valid(DeviceListQuery, node=node)
        reply: DeviceList = await ask(self.nats, "device.list", self.place, query)
        return reply

    async def queue(self, limit: int = 200) -> QueueList:
        """The waiting jobs, in the order in which they are considered."""
        query = valid(QueueListQuery, limit=limit)
        reply: QueueList = await ask(self.nats, "queue.list", self.place, query)
        return reply

    async def status(self) -> PoolStatus:
        """The pool's figures at a glance."""
        reply: PoolStatus = await ask(self.nats, "pool.status", self.place, PoolStatusQuery())
        return reply
