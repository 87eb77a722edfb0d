"""How long ago each node sent a heartbeat, for people. The service leases decides what follows from silence."""

from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.service.bootclock import now
from schemas import subjects


class Ages:
    """Hears every heartbeat; its content is not looked at. Nodes that the pool does not know are forgotten."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._heard: dict[str, float] = {}

    async def listen(self, nats: Client) -> None:
        await nats.subscribe(subjects.heartbeat(self._pool), cb=self._on_heartbeat)

    async def _on_heartbeat(self, message: Msg) -> None:
        self._heard[subjects.node_of(message.subject)] = now()

    def of(self, node: str) -> float | None:
        """Seconds since the node was last heard; None when it never was."""
        heard = self._heard.get(node)
        return None if heard is None else max(0.0, now() - heard)

    def forget(self, known: set[str]) -> None:
        """Drops all but these nodes."""
        for node in self._heard.keys() - known:
            del self._heard[node]
