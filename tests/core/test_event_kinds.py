"""Every kind of event has a meaning, or is said to have none, in every projection of the ledger."""

import pytest

from libs.core.admission.fleet_shape import FleetShape
from libs.core.billing.accounts import Accounts
from libs.core.billing.metering import Meter
from libs.core.projections.history import Feed, JobChanges
from libs.core.projections.hot_state import HotState
from libs.core.projections.node_lives import NodeLives
from libs.core.projections.secret_users import SecretUsers
from libs.core.projections.verify import Checker
from libs.core.proofs.chains import TeamChains
from libs.core.state import fold
from libs.report.facts import Facts
from schemas.ledger import EVENT_KINDS, LedgerRecord
from services.preemption.planner import PreemptionPlanner
from services.queries.replica import Replica
from services.telemetry.figures import PoolFigures
from tests.core.builders import World, job, node

PROJECTIONS = {
    "placement's state": (fold.HANDLED, fold.IGNORED),
    **{p.__name__: (p.handled, p.ignored) for p in (
        FleetShape, HotState, NodeLives, Feed, JobChanges, Meter, PoolFigures, PreemptionPlanner, Replica, Checker, Facts,
        SecretUsers, TeamChains, Accounts,
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", PROJECTIONS)
@pytest.mark.parametrize("kind", sorted(EVENT_KINDS))
def test_a_projection_handles_a_kind_or_says_that_it_ignores_it(name: str, kind: str) -> None:
    handled, ignored = PROJECTIONS[name]
    assert (kind in handled) != (kind in ignored), (
        f"{name} must say of {kind!r} whether it is handled or ignored: once, beside its `apply`"
    )


@pytest.mark.parametrize("name", PROJECTIONS)
def test_no_projection_speaks_of_a_kind_that_does_not_exist(name: str) -> None:
    handled, ignored = PROJECTIONS[name]
    assert handled | ignored <= EVENT_KINDS.keys()


def test_a_skippable_kind_says_so_for_good() -> None:
    """The mark is a constant of the kind: an event that is skippable now and then would split its readers."""
    for kind, event in EVENT_KINDS.items():
        field = event.model_fields.get("skippable")
        assert field is None or (field.default is True and not field.is_required()), kind
        if field is not None:
            with pytest.raises(ValueError, match="skippable"):
                event.model_validate({"kind": kind, "skippable": False})


@pytest.mark.parametrize("projection", [FleetShape, HotState, Feed, Meter, PoolFigures, PreemptionPlanner, Replica])
def test_dump_and_load_are_inverse(projection: type) -> None:
    world = World(node("a", 4), node("b", 4))
    runs = [world.submit(job(f"j{n}", 1 + n % 3)) for n in range(9)]
    world.started(runs[0])
    world.released(runs[0])
    kept = projection()
    for seq, record in enumerate(world.records, 1):
        kept.apply(record, seq)
        kept.skip(seq)
    again = projection.load(iter(list(kept.dump())))
    assert list(again.dump()) == list(kept.dump())
    assert list(projection().dump()) != list(kept.dump())
    assert isinstance(world.records[0], LedgerRecord)
