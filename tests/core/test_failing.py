"""Nodes on which every job fails at once: they are taken out of use, and nobody can make a good one look so."""

from collections import Counter
from collections.abc import Iterator

import pytest

from libs.core.billing.accounts import Account, Accounts
from libs.core.scheduling.failing import AT_ONCE_US, EACH, IN_A_ROW, MOST_PART
from libs.core.state.formats import BACK_OFF_FAILURES, FORMAT_OF
from schemas import inbox
from schemas.attempts import Category
from schemas.jobs import RetryPolicy
from schemas.ledger import NodeCordoned
from tests.core.builders import World, job, node

TEAMS = ("blue", "green", "red", "grey")
S = 1_000_000


def jobs(*teams: str) -> Iterator[inbox.JobAdmitted]:
    """Without end, the teams in turns."""
    for number in range(1_000_000):
        yield job(f"j{number}", team=teams[number % len(teams)])


def fails(world: World, job_id: str, *, after_us: int = 1000) -> None:
    world.started(job_id)
    world.send(after_us=after_us)
    world.released(job_id, exit_code=1)


def refused(world: World, job_id: str, category: Category | None) -> None:
    (name,) = world.nodes_of(job_id)
    told = inbox.Refused(job_id=job_id, attempt=world.attempt(job_id), reason="no device", category=category)
    world.observe(name, told)


def cordons(world: World) -> list[NodeCordoned]:
    return [event for record in world.records for event in record.events if isinstance(event, NodeCordoned)]


def test_a_node_on_which_every_job_fails_at_once_is_taken_out_of_use() -> None:
    world = World(node("n0"), node("n1"))
    went, waiting = Counter[str](), jobs(*TEAMS)
    while went["n1"] < 5:
        one = world.submit(next(waiting))
        (name,) = world.nodes_of(one)
        went[name] += 1
        if name == "n0":
            fails(world, one)
        else:
            world.started(one)
    assert went["n0"] == IN_A_ROW
    (told,) = cordons(world)
    assert (told.node, told.user) == ("n0", "")
    assert told.reason == "10 jobs of 4 teams in a row failed within a minute: repair it, then uncordon it"
    assert world.decider.state.cordoned == {"n0": f"placement: {told.reason}"}
    world.send(inbox.UncordonNode(node="n0", user="olga"))
    assert world.nodes_of(world.submit(next(waiting)))
    assert len(cordons(world)) == 1, "it has a new chance"
    world.check()


def test_what_it_could_not_begin_for_what_is_broken_there_counts_and_a_reason_that_passes_does_not() -> None:
    for category, expected in ((Category.HARDWARE, 1), (None, 0)):
        world, waiting = World(node("n0"), node("n1")), jobs(*TEAMS)
        for _ in range(2 * IN_A_ROW):
            one = world.submit(next(waiting))
            while world.nodes_of(one) == ["n0"]:
                refused(world, one, category)
        assert len(cordons(world)) == expected
        world.check()


def test_one_broken_device_of_a_node_that_works_is_found() -> None:
    world, waiting = World(node("n0", 2), node("n1", 2)), jobs(*TEAMS[:3])
    for _ in range(2 * IN_A_ROW):
        first, second = world.submit(next(waiting)), world.submit(next(waiting))
        for one in (first, second):
            (claim,) = world.decider.state.jobs[one].current.claims  # type: ignore[union-attr]
            if claim.device == "n0-gpu0":
                fails(world, one)
            else:
                world.started(one)
                world.released(one)
    (told,) = cordons(world)
    assert told.reason.startswith("10 jobs of 3 teams in a row failed within a minute on its device n0-gpu0")
    world.check()


@pytest.mark.parametrize("teams", [("blue",), ("blue", "green")])
def test_one_team_or_two_do_not_take_a_node_out_of_use(teams: tuple[str, ...]) -> None:
    world, waiting = World(node("n0"), node("n1")), jobs(*teams)
    for _ in range(5 * IN_A_ROW):
        fails(world, world.submit(next(waiting)))
    assert not cordons(world)


def test_a_hostile_team_and_two_with_a_slip_do_not_either() -> None:
    assert EACH + 2 * 2 < IN_A_ROW
    world = World(node("n0"), node("n1"))
    for number in range(100):
        fails(world, world.submit(job(f"bad{number}", team="hostile")))
    for team in ("blue", "green"):
        for number in range(2):
            fails(world, world.submit(job(f"slip{number}", team=team)))
    assert not cordons(world)


def holds_the_ports_of_others(world: World, job_id: str, *, told: bool) -> None:
    """What comes of it that a job of another team listens at the port at which this gang meets."""
    (name,) = world.nodes_of(job_id)
    world.observe(
        name,
        inbox.Released(
            job_id=job_id,
            attempt=world.attempt(job_id),
            exit_code=126,
            own_exit=True,
            category=Category.HARDWARE,
            port_held=told,
        ),
    )


@pytest.mark.parametrize("told", [True, False])
def test_a_team_that_holds_the_ports_of_others_takes_no_node_from_them(told: bool) -> None:
    """Seen, when no agent told it: beside four failing jobs of its own, three gangs each of two other teams were enough."""
    world = World(node("n0", 16), node("n1", 2, model="L4"))
    for number in range(EACH):
        fails(world, world.submit(job(f"bad{number}", team="hostile", types=("H100",))))
    for team in ("blue", "green"):
        for number in range(3):
            one = world.submit(job(f"gang{number}", 2, team=team, types=("H100",)))
            holds_the_ports_of_others(world, one, told=told)
    assert bool(cordons(world)) is not told
    world.check()


def test_what_a_gang_met_at_a_port_that_others_held_does_not_count_for_its_other_nodes() -> None:
    """There the ranks fail first, as they meet a stranger; then its first node tells why."""
    world = World(node("n0", 2), node("n1", 2))
    for number in range(3):
        for team in TEAMS:
            gang = world.submit(job(f"gang{number}", 4, team=team))
            first, second = world.nodes_of(gang)
            world.released(gang, exit_code=1, nodes=[second])
            told = inbox.Released(job_id=gang, attempt=world.attempt(gang), exit_code=0, own_exit=False, port_held=True)
            world.observe(first, told)
    assert not cordons(world)
    world.check()


def test_the_same_job_again_and_again_counts_once() -> None:
    world, often = World(node("n0"), node("n1"), allowed=BACK_OFF_FAILURES - 1), RetryPolicy(on_failure=100)
    for one in [world.submit(job("one", team=team, retry=often)) for team in TEAMS]:
        for _ in range(IN_A_ROW):
            fails(world, one)
    assert not cordons(world)


@pytest.mark.parametrize("code", [0, 1])
def test_a_job_that_ends_well_or_fails_after_a_minute_shows_that_the_node_works(code: int) -> None:
    world, waiting = World(node("n0"), node("n1")), jobs(*TEAMS)
    for _ in range(3):
        for _ in range(IN_A_ROW - 1):
            fails(world, world.submit(next(waiting)))
        good = world.submit(next(waiting))
        world.started(good)
        world.send(after_us=0 if code == 0 else AT_ONCE_US + S)
        world.released(good, exit_code=code)
    assert not cordons(world)


@pytest.mark.parametrize("works_us", [AT_ONCE_US // 2, 2 * AT_ONCE_US])
def test_a_job_that_began_since_and_works_shows_it_too(works_us: int) -> None:
    world, waiting = World(node("n0", 12), node("n1", 12, model="L4")), jobs(*TEAMS)
    fails(world, world.submit(next(waiting)))
    world.started(world.submit(next(waiting)))
    world.send(after_us=works_us)
    for one in [world.submit(next(waiting)) for _ in range(IN_A_ROW)]:
        fails(world, one)
    assert len(cordons(world)) == (works_us < AT_ONCE_US)


def test_the_last_node_and_more_than_one_in_ten_stay_in_use() -> None:
    alone, waiting = World(node("n0")), jobs(*TEAMS)
    for _ in range(3 * IN_A_ROW):
        fails(alone, alone.submit(next(waiting)))
    assert not cordons(alone)
    many = World(*(node(f"n{n:02d}", 1) for n in range(2 * MOST_PART)))
    for _ in range(6 * IN_A_ROW):
        fails(many, many.submit(next(waiting)))
    assert len(cordons(many)) == 2
    many.check()


def test_beside_nodes_that_are_silent_the_last_one_that_is_heard_stays_in_use() -> None:
    """Else no node was left, until an operator looked."""
    world, waiting = World(node("n0"), node("n1")), jobs(*TEAMS)
    world.send(inbox.NodeSilent(node="n1", incarnation=1, silent_s=16))
    for _ in range(2 * IN_A_ROW):
        fails(world, world.submit(next(waiting)))
    assert not cordons(world)
    world.send(inbox.NodeHeardAgain(node="n1", incarnation=1))
    for _ in range(IN_A_ROW):
        fails(world, world.submit(next(waiting)))
    assert len(cordons(world)) == 1
    world.check()


def test_a_node_that_was_taken_out_of_use_and_is_gone_keeps_no_other_in_use() -> None:
    world, waiting = World(node("n0"), node("n1"), node("n2")), jobs(*TEAMS)
    while not cordons(world):
        fails(world, world.submit(next(waiting)))
    (first,) = cordons(world)
    world.send(inbox.NodeLost(node=first.node, incarnation=1, silent_s=31))
    for _ in range(2 * IN_A_ROW):
        fails(world, world.submit(next(waiting)))
    assert len(cordons(world)) == 2
    world.check()


def test_readers_of_before_keep_it_in_use() -> None:
    world, waiting = World(node("n0"), node("n1"), allowed=FORMAT_OF["node.cordoned"] - 1), jobs(*TEAMS)
    for _ in range(2 * IN_A_ROW):
        fails(world, world.submit(next(waiting)))
    assert not cordons(world)


def test_its_free_time_is_nobodys() -> None:
    world, waiting = World(node("n0", 1), node("n1", 1)), jobs(*TEAMS)
    while not cordons(world):
        fails(world, world.submit(next(waiting)))
    out_us = world.now_us
    world.send(after_us=10 * S)
    books = Accounts()
    for seq, record in enumerate(world.records, 1):
        books.apply(record, seq)
    assert books.balances(out_us + 10 * S)[Account.MAINTENANCE] == 7000 * 10 * S
