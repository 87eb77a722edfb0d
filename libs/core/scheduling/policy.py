"""The knobs of scheduling. An operator rarely turns them."""

from dataclasses import dataclass

from libs.core.placement.throughput import Chooser
from libs.core.scheduling.allowances import NODE_DEVICES
from libs.core.scheduling.precedence import Precedence


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operator may set of a pool's cycles. Times in microseconds."""

    reserve_after_us: int = 60_000_000
    """How long a gang waits until its reservation is due: it is considered first, and devices are kept free for it."""
    reservations: int = 4
    """How many gangs at once: each keeps devices idle that others could use."""
    claims_per_cycle: int = 1024
    """A cycle ends before it grants more than this (a larger gang goes alone): a record must fit into one message of
    the bus. The next cycle goes on with the next input, a tick at the latest."""
    reconsider_after_us: int = 300_000_000
    """What did not fit is tried again after this long, also if nothing has changed that could help it: a safety net under the
    rules that say what can help (as in Kubernetes, whose scheduler does the same after five minutes)."""
    precedence: Precedence | None = None
    """Orders the jobs of a class; None: by the share of their team, then by age."""
    chooser: Chooser | None = None
    """Orders device models by measured throughput, for jobs with an objective."""
    repartition: bool = True
    """Repartition idle instances of dynamic MIG boards for requests that none serves (`libs.core.scheduling.repartition`)."""
    repartition_after_us: int = 30_000_000
    """How long such a request waits first: a running job may end soon, and its instance serves without a repartition."""
    repartition_rest_us: int = 300_000_000
    """How long a board stays as it is after a repartition, so that two competing profiles do not take turns at it."""
    repartition_answer_us: int = 600_000_000
    """How long a node that is up may take to answer a repartition before it is withdrawn. Cutting a board takes seconds;
    an agent tries again every few seconds."""
    node_devices: int = NODE_DEVICES
    """Ids of devices that one node may ever have had."""
