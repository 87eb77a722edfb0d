"""Boards that are cut for a team which does not use them: how many, what the others get meanwhile, and what is said of it."""

from collections.abc import Callable
from random import Random

import pytest

from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.scheduling.decider import Decider
from libs.core.state import fold
from libs.core.state.formats import CUTS_COUNTED
from libs.core.state.model import State
from libs.core.state.unused_cuts import AT_ONCE, EACH_US, FULL_US, UnusedCuts
from schemas import inbox
from schemas.explanations import Explanation
from schemas.ledger import BoardRecut, LedgerRecord
from schemas.resources import Device
from tests.core.builders import World
from tests.core.test_repartition import ONE, ONES, POLICY, SECOND, SEVEN, THREE, ask, carry_out, cut, held, tick
from tests.core.test_verify_lies import report

TWO = "2g.20gb"


# ---------------------------------------------------------------------------------------------------------- the bucket


def made(cuts: UnusedCuts, board: str, team: str, t_us: int) -> None:
    """The board is cut for the team: it has an instance for a job, and one that was there before."""
    cuts.asked(board, "n0", team, [(SEVEN, 0)], t_us)
    cuts.done(board, {f"of {board}": (SEVEN, 0), f"old of {board}": (ONE, 0)})


def emptied(t_us: int = 0) -> UnusedCuts:
    """Of red, whose boards were all cut at once."""
    cuts = UnusedCuts()
    for n in range(AT_ONCE):
        assert cuts.left("red", t_us) == AT_ONCE - n
        assert cuts.next_us("red", t_us) == t_us
        made(cuts, f"b{n}", "red", t_us)
    return cuts


def test_so_many_at_once_and_then_one_in_each_while() -> None:
    cuts = emptied()
    assert cuts.left("red", EACH_US - 1) == 0
    assert cuts.next_us("red", EACH_US - 1) == EACH_US
    assert cuts.left("red", EACH_US) == 1
    assert cuts.left("blue", 0) == AT_ONCE
    assert cuts.left("red", FULL_US) == cuts.left("red", 10 * FULL_US) == AT_ONCE


def test_a_cut_does_not_count_while_its_team_holds_what_it_made() -> None:
    cuts = emptied()
    cuts.granted("of b0", "blue", 0)
    cuts.granted("old of b1", "red", 0)
    assert cuts.left("red", 0) == 0, "another team has it, or it was there before"
    cuts.granted("of b2", "red", 0)
    assert cuts.left("red", 0) == 1
    cuts.freed("of b2", 5 * SECOND)
    assert cuts.left("red", 5 * SECOND) == 0, "its job ended at once"
    assert cuts.unused_by("b2", 5 * SECOND) == "red"


def test_a_cut_is_used_once_its_team_has_held_what_it_made_for_long_enough() -> None:
    cuts = emptied()
    for start_us in (0, EACH_US // 2):
        cuts.granted("of b0", "red", start_us)
        cuts.freed("of b0", start_us + EACH_US // 2)
    assert cuts.unused_by("b0", EACH_US) == ""
    assert cuts.left("red", EACH_US) == 1 + 1, "that one, and what time has given"
    cuts.granted("of b1", "red", EACH_US)
    assert cuts.unused_by("b1", 2 * EACH_US - 1) == "red"
    assert cuts.unused_by("b1", 2 * EACH_US) == "", "while it runs, too"


def test_what_a_node_has_not_done_does_not_count() -> None:
    cuts = emptied()
    cuts.failed("b0")
    assert cuts.left("red", 0) == 1
    cuts.granted("of b1", "red", 0)
    cuts.node_begins_anew("n0")
    assert cuts.left("red", 0) == AT_ONCE
    assert not cuts
    cuts.freed("of b1", 1)
    assert cuts.left("red", 1) == AT_ONCE


def test_a_board_that_is_cut_for_another_team_is_that_ones() -> None:
    cuts = emptied()
    cuts.granted("of b0", "red", 0)
    for board in ("b0", "b1"):
        made(cuts, board, "blue", 0)
        cuts.granted(f"of {board}", "red", 0)
    cuts.freed("of b0", 1)
    assert cuts.left("red", 1) == 1, "of the one that it held then"
    assert cuts.unused_by("b1", 1) == "blue"


def test_what_two_cuts_are_said_to_have_made_is_of_the_later_one() -> None:
    cuts = UnusedCuts()
    for board in ("b1", "b0"):
        cuts.asked(board, "n0", "red", [(SEVEN, 0)], 0)
        cuts.done(board, {"the same": (SEVEN, 0)})
    cuts = UnusedCuts.load(cuts.dump())
    cuts.granted("the same", "red", 0)
    assert cuts.left("red", 0) == AT_ONCE - 1
    assert cuts.unused_by("b0", EACH_US) == ""
    assert cuts.unused_by("b1", EACH_US) == "red"
    cuts.node_begins_anew("n0")
    assert not cuts


def test_nothing_is_kept_of_teams_and_boards_of_long_ago() -> None:
    cuts = UnusedCuts()
    for n in range(10_000):
        made(cuts, f"b{n}", f"team-{n}", n * SECOND)
        cuts.granted(f"of b{n}", f"team-{n}", n * SECOND)
        cuts.freed(f"of b{n}", n * SECOND)
    of_teams, of_boards = cuts.dump()
    assert len(of_teams) == EACH_US // SECOND
    assert len(of_boards) == FULL_US // SECOND


@pytest.mark.parametrize("seed", range(20))
def test_a_team_has_no_more_cut_than_time_and_use_have_given_it(seed: int) -> None:
    """Within any time at most as many unused ones as a full bucket and what that time fills in; loaded again at each step."""
    random, cuts, t_us = Random(seed), UnusedCuts(), 0
    unused: list[tuple[int, str]] = []
    for n in range(300):
        t_us += random.randint(0, EACH_US // 2)
        if cuts.left("red", t_us):
            unused.append((t_us, f"b{n}"))
            made(cuts, f"b{n}", "red", t_us)
        else:
            assert cuts.next_us("red", t_us) > t_us
        if unused and random.random() < 0.3:
            at, (_, board) = random.choice(list(enumerate(unused)))
            cuts.granted(f"of {board}", "red", t_us)
            t_us += (held_us := random.choice([0, EACH_US]))
            cuts.freed(f"of {board}", t_us)
            if held_us:
                del unused[at]
        again = UnusedCuts.load(cuts.dump())
        assert again.dump() == cuts.dump()
        cuts = again
    assert len(unused) > AT_ONCE
    for first, (from_us, _) in enumerate(unused):
        for count, (to_us, _) in enumerate(unused[first:], 1):
            assert count <= AT_ONCE + (to_us - from_us) // EACH_US


# ----------------------------------------------------------------------------------------------------------- in a pool


def pool(boards: int, allowed: int = CUTS_COUNTED) -> World:
    return World(cut("n0", {f"b{n}": ONES for n in range(boards)}), allowed=allowed)


def cuts_of(world: World, *, team: str = "red", boards: int = 20) -> list[BoardRecut]:
    """All that is cut within two ticks for a team that asks for whole boards, and cancels."""
    asked = world.submit(ask("in vain", SEVEN, boards, team=team))
    found = [*tick(world, 30), *tick(world)]
    world.send(inbox.CancelRequested(job_id=asked, team=team, reason="not needed"))
    return found


def test_so_many_boards_are_cut_for_a_team_that_uses_none() -> None:
    world = pool(20)
    found = cuts_of(world)
    assert len(found) == AT_ONCE
    for one in found:
        carry_out(world, one)
    world.submit(ask("more", THREE, 2, team="red"))
    first_us = min(world.decider.state.repartition_us.values())
    assert tick(world, 31) == []
    assert world.send(inbox.Tick(), after_us=first_us + EACH_US - 1 - world.now_us) == []
    found = [e.kind for e in world.send(inbox.Tick(), after_us=1)]
    assert found.count("board.recut") == 1, "with the first tick when time has given one"
    world.check()


def test_others_have_boards_cut_meanwhile() -> None:
    world = pool(20)
    cuts_of(world)
    world.submit(ask("more", THREE, 8, team="red"))
    other = world.submit(ask("other", TWO, 4, team="blue"))
    found = tick(world, 31)
    assert {one.for_job for one in found} == {other}
    for one in found:
        carry_out(world, one)
    assert len(held(world, other)) == 4
    world.check()


def test_who_uses_what_is_cut_has_as_much_cut_as_it_needs() -> None:
    world = pool(20)
    jobs = [world.submit(ask(f"runs {n}", SEVEN, team="red")) for n in range(20)]
    first = tick(world, 30)
    assert len(first) == AT_ONCE
    for one in first:
        carry_out(world, one)
    assert sum(bool(held(world, job)) for job in jobs) == AT_ONCE
    second = tick(world)
    assert len(second) == 20 - AT_ONCE
    for one in second:
        carry_out(world, one)
    for job in jobs:
        world.started(job)
        world.released(job)
    world.check()
    state = world.decider.state
    assert state.unused_cuts.left("red", world.now_us) == 0
    world.send(after_us=EACH_US)
    assert state.unused_cuts.left("red", world.now_us) == 0, "twenty were cut, and used for a moment"


def test_while_older_readers_live_no_cut_counts() -> None:
    world = pool(20, allowed=CUTS_COUNTED - 1)
    found = cuts_of(world)
    assert len(found) == 20
    assert {one.for_job for one in found} == {None}
    world.check()


def test_a_job_that_waits_for_a_cut_is_told_the_limit_and_the_time() -> None:
    world = pool(20)
    found = cuts_of(world)
    for one in found:
        carry_out(world, one)
    waits, other = (world.submit(ask("waits", THREE, team=team)) for team in ("red", "blue"))
    world.send(inbox.Tick())

    def told(job: str) -> Explanation:
        return explain(state, state.jobs[job], Reasons(state), seen_by=state.jobs[job].team)

    state = world.decider.state
    wait_s = -(-(state.repartition_us["b0"] + EACH_US - world.now_us) // SECOND)
    assert told(waits).reason == "cuts-used-up"
    assert (
        f"16 MIG boards were cut for team red that it has not used, the most at once: the next one in {wait_s} s"
        in (told(waits).text)
    )
    assert told(other).reason != "cuts-used-up"
    assert "MIG boards" not in told(other).text
    for_it = f"; a board may be cut into {THREE} for it, when enough of the board is idle and it has waited a while"
    assert told(other).text.endswith(for_it)
    assert for_it not in told(waits).text
    world.send(inbox.Tick(), after_us=wait_s * SECOND)
    assert told(waits).reason != "cuts-used-up"


def test_who_asks_again_and_again_for_larger_ones_keeps_no_board_from_being_cut() -> None:
    """Its jobs never wait for long enough to have one cut."""
    world = pool(1)
    asked = world.submit(ask("in vain", SEVEN, team="red"))
    waits = world.submit(ask("waits", THREE, team="blue"))
    for n in range(3):
        world.send(inbox.CancelRequested(job_id=asked, team="red", reason="not needed"), after_us=20 * SECOND)
        asked = world.submit(ask(f"in vain {n}", SEVEN, team="red"))
        for one in tick(world):
            carry_out(world, one)
    assert held(world, waits)
    world.check()


class Hostile:
    """A team that asks for whole boards and for halves in turns, and cancels as soon as a board is to be cut."""

    def __init__(self, world: World, boards: int) -> None:
        self._world, self._boards, self._turn = world, boards, 0
        self._open: list[str] = []
        self.cuts = 0
        self._ask()

    def _ask(self) -> None:
        profile, each = ((SEVEN, 1), (THREE, 2))[self._turn % 2]
        self._turn += 1
        names = [f"in vain {self._turn}-{n}" for n in range(self._boards)]
        self._open = [self._world.submit(ask(name, profile, each, team="red")) for name in names]

    def cut(self, boards: int) -> None:
        self.cuts += boards
        for job in self._open:
            self._world.send(inbox.CancelRequested(job_id=job, team="red", reason="not needed"))
            if self._world.state_of(job) != "ended":
                self._world.started(job)
                self._world.released(job)
        self._ask()


def lives(boards: int, wanted: str, hours: float) -> tuple[list[float], int]:
    """How long jobs of another team wait beside such a team, one after the other, s; and how often it had a board cut. A node
    cuts a board in ten seconds."""
    world = pool(boards)
    hostile, state = Hostile(world, boards), world.decider.state
    waits: list[float] = []
    pending: list[tuple[int, BoardRecut]] = []
    job, asked_us, next_us = "", 0, 60 * SECOND
    while world.now_us < hours * 3600 * SECOND:
        found = tick(world, 5)
        pending += [(world.now_us + 10 * SECOND, one) for one in found]
        if in_vain := [one for one in found if not job or job not in one.why]:
            hostile.cut(len(in_vain))
        while pending and pending[0][0] <= world.now_us:
            _, one = pending.pop(0)
            if one.recut.board in state.repartitions:
                carry_out(world, one)
        if not job and world.now_us >= next_us:
            job, asked_us = world.submit(ask(f"other {len(waits)}", wanted, team="blue")), world.now_us
        elif job and held(world, job):
            waits.append((world.now_us - asked_us) / SECOND)
            world.started(job)
            world.released(job, exit_code=0)
            job, next_us = "", world.now_us + 60 * SECOND
    world.check()
    return [*waits, *([(world.now_us - asked_us) / SECOND] if job else [])], hostile.cuts


@pytest.mark.parametrize("boards", [1, 4, 20])
@pytest.mark.parametrize("wanted", [ONE, TWO], ids=["what was there", "what has to be cut"])
def test_beside_a_team_that_has_boards_cut_for_nobody_others_wait_until_a_board_has_rested(
    boards: int, wanted: str
) -> None:
    waits, cuts = lives(boards, wanted, hours=2)
    assert len(waits) > 30
    assert max(waits) <= (POLICY.repartition_rest_us + POLICY.repartition_after_us) / SECOND + 20
    assert cuts <= 2 * (AT_ONCE + 2 * 3600 * SECOND // EACH_US)


def says(world: World, recut: BoardRecut, devices: tuple[Device, ...]) -> None:
    """Its node answers a repartition, and says that it has these."""
    inventory = world.decider.state.fleet.nodes[recut.node].inventory
    told = inventory.model_copy(
        update={"devices": tuple(d.model_copy(update={"index": n}) for n, d in enumerate(devices))}
    )
    world.send(
        inbox.BoardCut(
            node=recut.node, incarnation=recut.incarnation, board=recut.recut.board, number=recut.recut.number, ok=True,
            reason="", inventory=told,
        )
    )  # fmt: skip


def on_board(state: State, moved: set[str], board: str) -> tuple[Device, ...]:
    """What the node has now but for what is on `board`, and `moved` on that."""
    return tuple(
        d.model_copy(update={"parent": board}) if d.id in moved else d
        for d in state.fleet.nodes["n0"].inventory.devices
        if d.id in moved or d.parent != board
    )


def test_a_node_that_names_an_instance_on_another_board_later_stops_nobody() -> None:
    """Seen: placement failed on each input by which such a node left, or came again; and on a tick, for ever."""
    world = pool(3)
    world.submit(ask("in vain", SEVEN, 2, team="red"))
    first, second = tick(world, 30)
    carry_out(world, first)
    state = world.decider.state
    says(world, second, on_board(state, {f"{first.recut.board}-{SEVEN}-0"}, second.recut.board))
    assert Decider.load(world.decider.dump()).state.unused_cuts.dump() == state.unused_cuts.dump()
    world.check()
    world.send(inbox.NodeRegistered(incarnation=2, inventory=cut("n0", {"b0": ONES}), lease_s=10))
    assert not state.unused_cuts
    world.check()


def test_the_checker_counts_what_a_node_that_lies_has_made_as_placement_does() -> None:
    """An instance is said to be on another board later, and its team is granted it: it has used the cut."""
    world = pool(20)
    found = cuts_of(world)
    for one in found:
        carry_out(world, one)
    state = world.decider.state
    world.submit(ask("other", TWO, 1, team="blue"))
    (of_blue,) = tick(world, 31)
    says(world, of_blue, on_board(state, {f"{one.recut.board}-{SEVEN}-0" for one in found}, of_blue.recut.board))
    assert state.unused_cuts.left("red", world.now_us) == 0
    assert held(world, world.submit(ask("runs", SEVEN, team="red")))
    assert state.unused_cuts.left("red", world.now_us) == 1
    more = world.submit(ask("more", THREE, 2, team="red"))
    assert [one.for_job for one in tick(world, 31)].count(more) == 1
    world.check()


# ------------------------------------------------------------------------------------------------------ in the checker


def changed(records: list[LedgerRecord], change: Callable[[BoardRecut], BoardRecut]) -> list[LedgerRecord]:
    return [
        record.model_copy(
            update={"events": tuple(change(e) if isinstance(e, BoardRecut) else e for e in record.events)}
        )
        for record in records
    ]


def named(job: str | None) -> Callable[[BoardRecut], BoardRecut]:
    return lambda event: event.model_copy(update={"for_job": job})


def test_the_checker_finds_a_cut_that_is_for_nobody_who_waits() -> None:
    world = pool(2)
    runs = world.submit(ask("runs", ONE, team="blue"))
    cuts_of(world, boards=2)
    assert report(world.records).violations == []
    for job in (runs, "job-" + "0" * 32):
        assert any("I8" in one for one in report(changed(world.records, named(job))).violations)
    of_before = [record.model_copy(update={"format": CUTS_COUNTED - 1}) for record in world.records]
    assert any("I8" in one for one in report(of_before).violations), "it names a job too early"


def test_an_older_release_that_writes_on_names_nobody_and_breaks_nothing() -> None:
    """An upgrade was taken back after its format was raised."""
    world = pool(20)
    found = cuts_of(world)
    assert report(changed(world.records, named(None))).violations == []
    for one in found:
        carry_out(world, one)
    state = world.decider.state
    last = found[0].recut
    fold.apply(
        state,
        found[0].model_copy(update={"recut": last.model_copy(update={"number": 9}), "for_job": None}),
        world.now_us,
    )
    assert state.unused_cuts.unused_by(last.board, world.now_us) == ""


def test_the_checker_finds_that_a_team_has_more_cut_than_it_may() -> None:
    """As a writer would that does not look, whose records say for whom all the same."""
    world = pool(20, allowed=CUTS_COUNTED - 1)
    asked = world.submit(ask("in vain", SEVEN, 20, team="red"))
    assert len([*tick(world, 30), *tick(world)]) == 20
    told = [record.model_copy(update={"format": CUTS_COUNTED}) for record in changed(world.records, named(asked))]
    assert len([one for one in report(told).violations if "I8" in one and "team red" in one]) == 20 - AT_ONCE
    assert report(world.records).violations == [], "of before"


def test_what_is_not_used_is_in_a_snapshot() -> None:
    world = pool(20)
    for one in cuts_of(world):
        carry_out(world, one)
    job = world.submit(ask("runs", SEVEN, team="red"))
    assert held(world, job)
    state = Decider.load(world.decider.dump()).state
    assert state.unused_cuts.dump() == world.decider.state.unused_cuts.dump()
    assert state.unused_cuts.left("red", world.now_us) == 1
