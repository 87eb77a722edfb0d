"""What placement says of its own commits, and its answer to nodes. Nothing here changes anything."""

from libs.bus.queries import InvalidQuestion
from libs.core.scheduling.decider import Decider
from libs.core.state.desired import desired
from schemas.jobs import Reason
from schemas.ledger import JobGranted, JobQueued, LedgerRecord
from schemas.nodes import DesiredQuery, DesiredReply


def granted_at_once_ms(record: LedgerRecord, decider: Decider, now_us: int) -> list[float]:
    """From submit stored to grant committed, ms, of the jobs that a committed record both queues and grants.

    `now_us` is this process's clock, compared with the broker's submit times: on one host the same clock.
    """
    new = {e.job_id for e in record.events if type(e) is JobQueued}
    granted = [e.job_id for e in record.events if type(e) is JobGranted and e.attempt == 1 and e.job_id in new]
    return [max(0.0, (now_us - decider.state.jobs[job].submitted_us) / 1000) for job in granted]


def desired_of(decider: Decider, query: DesiredQuery, asker: str, *, pool: str, ledger_seq: int) -> DesiredReply:
    """The desired state of `asker`, if it is up. A node that is missing in the reply was declared lost, and registers again.

    Raises InvalidQuestion when the question names another node than the subject does."""
    if foreign := [name for name in query.nodes if name != asker]:
        raise InvalidQuestion([_not_its_own(asker, foreign[0])])
    nodes = decider.state.fleet.nodes
    known = [name for name in query.nodes if name in nodes and nodes[name].up]
    return DesiredReply(states=tuple(desired(decider.state, name, pool, ledger_seq) for name in known))


def _not_its_own(asker: str, named: str) -> Reason:
    return Reason(
        field="nodes",
        value=named,
        problem=f"is asked for on the subject of node {asker!r}",
        fix="ask for each node on its own subject",
    )
