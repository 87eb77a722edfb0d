"""Whether the states that placement has saved are the fold of the ledger (I9). Another process made them, perhaps on another
machine, with another Python or another release, out of the same records."""

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from libs.core.projections.verify import Verification
from libs.core.scheduling.decider import Decider
from libs.core.state.snapshot import VERSION, unlike
from libs.ledger.chain import ChainEntry
from libs.ledger.snapshots import Restored, SnapshotStore, unpack

WRITER = "placement"
"""Whose snapshots hold the state (`libs.ledger.writer`)."""


class SavedStates:
    """Folds the ledger beside its checker, up to the last state that was saved, and looks at each."""

    def __init__(self, saved: list[Restored[bytes]]) -> None:
        self._saved = sorted(saved, key=lambda one: one.position)
        self._decider = Decider()

    @classmethod
    async def of(cls, js: JetStreamContext, pool: str) -> "SavedStates":
        """What is in the store now, of this version of the state. Raises nats errors when the broker does not answer."""
        try:
            return cls(await SnapshotStore(js, pool).kept(WRITER, VERSION))
        except NotFoundError:  # no bucket: nobody has ever saved
            return cls([])

    def step(self, entry: ChainEntry, report: Verification) -> None:
        """The next message of the ledger."""
        if not self._saved:
            return
        if entry.valid:
            try:
                self._decider.apply(entry.record, entry.seq)
            except Exception as error:
                report.violated("I9", entry.seq, f"placement's fold cannot take it in: {error!r}")
                self._saved.clear()
                return
        while self._saved and self._saved[0].position == entry.seq:
            saved = self._saved.pop(0)
            report.states += 1
            if what := unlike(unpack(saved.value), self._decider.dump()):
                report.violated(
                    "I9", entry.seq, f"the state that placement saved is not the fold of the ledger: {what}"
                )
