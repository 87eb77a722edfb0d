"""The pool at a glance: what is held, in whole accelerators."""

from libs.cli.status import _held
from libs.core.projections.pool_status import StatusFigures
from schemas import inbox
from schemas.pool_status import PoolStatus, Quantiles
from schemas.resources import Resources
from tests.core.builders import World, job, node
from tests.core.test_limits import asking, board, processors


def shown(world: World) -> PoolStatus:
    return StatusFigures(world.decider.state, "main", 1).of_all(Quantiles(count=0), Quantiles(count=0))


def test_an_instance_is_held_as_its_part_of_a_board_and_a_processor_apart() -> None:
    world = World(board("m", "1g.10gb", 7), node("h", 2), processors("c"))
    for i in range(3):
        world.submit(asking(f"s{i}", Resources(mig_profile="1g.10gb")))
    world.submit(job("whole"))
    world.submit(asking("cpu", Resources(types=("CPU",))))
    seen = shown(world)
    assert (seen.accelerators_used_milli, seen.accelerators_milli) == (1429, 3000), "three sevenths, rounded up"
    assert (seen.processors_used_milli, seen.processors_milli) == (1000, 1000)
    assert (seen.devices, seen.milli_used) == (10, 5000)
    assert _held(seen) == "1.429 of 3 accelerators, 1 of 1 processor device"


def test_what_is_down_and_an_empty_pool_hold_nothing() -> None:
    assert _held(shown(World())) == "-"
    world = World(node("a", 1), node("b", 4))
    world.send(inbox.NodeLost(node="b", incarnation=1, silent_s=30))
    assert _held(shown(world)) == "0 of 1 accelerator"
