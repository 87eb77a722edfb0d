"""Assembles a node's desired state from placement's messages: pieces of a state, changes of it, specs by digest. Pure.

The result is a `DesiredState` for `services.agent.reconcile`. A new part whose spec has not arrived is left out, and
starts later. So is any later grant on one of its devices: if that started first, the earlier grant would look stale.
"""

from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence

from schemas.base import of_known
from schemas.jobs import JobSpec
from schemas.nodes import (
    SPECS_PER_QUESTION,
    DesiredPart,
    DesiredState,
    LiftedQuarantine,
    NodeChanged,
    NodeState,
    ReferencedPart,
)
from schemas.resources import Recut
from services.agent.reconcile import Key

_KEPT_SPECS = 256
_UNKNOWN = JobSpec.model_construct()
"""Placeholder for the unknown spec of a part that runs already; it is never started."""


class Specs:
    """Recently seen specs by digest, since many jobs have the same."""

    def __init__(self, most: int = _KEPT_SPECS) -> None:
        self._most = most
        self._specs: OrderedDict[str, JobSpec] = OrderedDict()

    def add(self, specs: Mapping[str, JobSpec]) -> None:
        for digest, spec in specs.items():
            self._specs[digest] = spec
            self._specs.move_to_end(digest)
        while len(self._specs) > self._most:
            self._specs.popitem(last=False)

    def get(self, digest: str) -> JobSpec | None:
        return self._specs.get(digest)


class Wanted:
    """The state for one life of a node. `seq`: ledger sequence of the known state, -1 before the first."""

    def __init__(self, pool: str, node: str, incarnation: int, specs: Specs) -> None:
        self.incarnation = incarnation
        self.seq = -1
        self._pool, self._node, self._seen = pool, node, specs
        self._parts: dict[str, ReferencedPart] = {}
        self._specs: dict[str, JobSpec] = {}
        self._made: dict[str, tuple[ReferencedPart, DesiredPart]] = {}
        """Parts with their specs, each built once."""
        self._recuts: tuple[Recut, ...] = ()
        self._withdrawn: tuple[Recut, ...] = ()
        self._lifted: tuple[LiftedQuarantine, ...] = ()

    def take_state(self, pieces: Sequence[NodeState]) -> None:
        """Takes all pieces of one state. An older one than the known changes nothing."""
        first = pieces[0]
        if first.ledger_seq < self.seq:
            return
        self.seq = first.ledger_seq
        if not first.unchanged:
            self._parts = {part.job_id: part for piece in pieces for part in piece.parts}
            self._recuts, self._withdrawn, self._lifted = first.recuts, first.withdrawn, first.lifted
            self._take_specs()

    def take_change(self, change: NodeChanged) -> bool:
        """Takes a change. Returns whether the state is known now; otherwise something was missed and must be requested."""
        if change.ledger_seq <= self.seq:
            return True
        if self.seq < change.since:
            return False
        self.seq = change.ledger_seq
        for job_id in change.gone:
            self._parts.pop(job_id, None)
        for part in change.parts:
            earlier = self._parts.get(part.job_id)
            if earlier is not None and earlier.attempt != part.attempt:
                del self._parts[part.job_id]  # granted again, so it moves to the end of the grant order
            self._parts[part.job_id] = part
        for job_id in change.started:
            if (known := self._parts.get(job_id)) is not None:
                self._parts[job_id] = known.model_copy(update={"started": True})
        for job_id in change.running:
            if (known := self._parts.get(job_id)) is not None:
                self._parts[job_id] = known.model_copy(update={"running": True})
        self._recuts, self._withdrawn, self._lifted = change.recuts, change.withdrawn, change.lifted
        self._seen.add(change.specs)
        self._take_specs()
        return True

    def take_specs(self, specs: Mapping[str, JobSpec]) -> None:
        self._seen.add(specs)
        for part in self._parts.values():
            if (spec := specs.get(part.spec)) is not None:
                self._specs[part.spec] = spec

    def lacking(self) -> list[str]:
        """Digests of missing specs, as many as one question may name."""
        lacking = dict.fromkeys(part.spec for part in self._parts.values() if part.spec not in self._specs)
        return list(lacking)[:SPECS_PER_QUESTION]

    def state(self, runs: Container[Key] = ()) -> DesiredState:
        """The desired state. `runs`: parts already on the node. They are included even if their specs are unknown here:
        an agent that continues them must not take them for unwanted."""
        parts: list[ReferencedPart] = []
        waits_for: set[str] = set()
        for part in self._parts.values():  # in grant order
            if (part.job_id, part.attempt) not in runs:
                devices = {rank.device for rank in part.ranks}
                if part.spec not in self._specs or not waits_for.isdisjoint(devices):
                    waits_for |= devices
                    continue
            parts.append(part)
        return of_known(
            DesiredState,
            {
                "pool": self._pool,
                "node": self._node,
                "incarnation": self.incarnation,
                "ledger_seq": self.seq,
                "parts": tuple(map(self._with_spec, parts)),
                "recuts": self._recuts,
                "withdrawn": self._withdrawn,
                "lifted": self._lifted,
            },
        )

    def _with_spec(self, part: ReferencedPart) -> DesiredPart:
        if part.spec not in self._specs:
            return of_known(DesiredPart, {**part.__dict__, "spec": _UNKNOWN})
        made = self._made.get(part.job_id)
        if made is None or made[0] is not part:
            whole = of_known(DesiredPart, {**part.__dict__, "spec": self._specs[part.spec]})
            made = self._made[part.job_id] = (part, whole)
        return made[1]

    def _take_specs(self) -> None:
        """Keeps the specs of wanted parts only."""
        wanted = {part.spec for part in self._parts.values()}
        known = {digest: self._specs.get(digest) or self._seen.get(digest) for digest in wanted}
        self._specs = {digest: spec for digest, spec in known.items() if spec is not None}
        self._made = {job_id: made for job_id, made in self._made.items() if job_id in self._parts}
