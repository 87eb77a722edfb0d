"""Leases in decisions: what silence ends and what it does not, who grants, and what an operator's word does."""

from typing import Any

import pytest

from libs.core.admission.priority_class import DEFAULT_CLASSES, PriorityClass
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.projections.granter import Granter
from libs.core.projections.node_health import Terms, Watch
from libs.core.projections.node_lives import GrantRight, NodeLives
from libs.core.projections.verify import Checker
from libs.core.scheduling import preemption
from libs.core.scheduling.decider import Decider, Deciders
from libs.core.state import snapshot
from libs.core.state.formats import FIRST
from libs.core.state.model import Silence
from schemas import inbox, ledger
from schemas.attempts import Evidence
from schemas.nodes import DesiredPart
from services.agent.settings import AgentSettings
from services.leases.settings import LeaseSettings
from tests.core.builders import World, job, node
from tests.kit.states import dumped

TERMS = Terms(max_lease_s=300, kill_bound_s=5, rho=0.001, margin_s=1)


def leased(name: str, lease_s: float, devices: int = 1, **more: Any) -> inbox.JobAdmitted:
    return job(name, devices, **more).model_copy(update={"lease_s": lease_s})


def kinds(events: list[Any]) -> list[str]:
    return [event.kind for event in events]


def silent(name: str, ended_s: float = 0.0) -> inbox.NodeSilent:
    return inbox.NodeSilent(node=name, incarnation=1, silent_s=ended_s + 20, ended_lease_s=ended_s)


def lost(name: str) -> inbox.NodeLost:
    return inbox.NodeLost(node=name, incarnation=1, silent_s=400)


def running(world: World, *jobs: inbox.JobAdmitted) -> list[str]:
    ids = [world.submit(one) for one in jobs]
    for one in ids:
        world.started(one)
    return ids


# -------------------------------------------------------------------------------------------------------- silence


def test_a_silent_node_gets_nothing_new_and_goes_on_when_it_is_heard() -> None:
    world = World(node("a", 2))
    (first,) = running(world, leased("first", 300))
    assert kinds(world.send(silent("a"))) == ["node.silent"]
    assert world.send(silent("a")) == []
    later = world.submit(leased("later", 300))
    assert world.state_of(later) == "queued"
    assert world.state_of(first) == "running"
    assert kinds(world.send(inbox.NodeHeardAgain(node="a", incarnation=1))) == ["node.heard", "job.granted"]
    assert world.send(inbox.NodeHeardAgain(node="a", incarnation=1)) == []
    assert world.checker.finish().violations == []


def test_of_a_job_on_a_silent_node_its_explanation_says_so() -> None:
    """Seen with an agent frozen: a gang that was cancelled was `stopping` for as long, and nothing said why."""
    world = World(node("a", 2), node("b", 2))
    (gang,) = running(world, leased("gang", 300, devices=4))
    state = world.decider.state

    def told() -> str:
        return explain(state, state.jobs[gang], Reasons(state)).text

    assert "silent" not in told()
    world.send(silent("b"))
    assert told().endswith("; b is silent: what is known of the job there is old, until the node is heard or given up")
    world.send(inbox.NodeHeardAgain(node="b", incarnation=1))
    assert "silent" not in told()


def test_of_a_job_that_waits_for_what_a_silent_node_has_its_explanation_says_so() -> None:
    """Seen: it was told to ask for another type, and nothing of the node that has what it asks for."""
    world = World(node("a", 2), node("b", 2), node("c", 2, model="A100"))
    for name in ("b", "c"):
        world.send(silent(name))
    state, gang = world.decider.state, world.submit(leased("gang", 300, devices=4, types=("H100",)))
    assert explain(state, state.jobs[gang], Reasons(state)).text.endswith(
        "; b is silent, and has devices that it could use"
    )
    world.send(inbox.NodeHeardAgain(node="b", incarnation=1))
    assert world.state_of(gang) == "granted"


def test_what_was_said_of_a_silence_is_decided_late_and_together() -> None:
    """The checker took the ledger's time for the silence's: it missed that the lease had ended (the simulation, seed 2213)."""
    world = World(node("a", 2))
    quick, long = running(world, leased("quick", 30), leased("long", 300))
    early = inbox.NodeSilent(node="a", incarnation=1, silent_s=2)
    events = world.send(
        early, silent("a", 30), inbox.NodeRegistered(incarnation=2, inventory=node("a", 2), lease_s=300)
    )
    freed = [e for e in events if isinstance(e, ledger.DevicesFreed)]
    assert [(e.job_id, e.silent_s) for e in freed] == [(quick, 50.0), (long, None)]
    assert world.checker.finish().violations == []


def test_a_short_lease_is_over_before_its_nodes_and_a_long_one_goes_on() -> None:
    """The quick one runs again elsewhere within half a minute; the other loses nothing when the node comes back."""
    world = World(node("a", 2), node("b", 1))
    blocker = running(world, leased("blocks b", 300, types=()))[0]
    world.send(silent("b"))
    quick, long = running(world, leased("quick", 30), leased("long", 300))
    world.send(inbox.NodeHeardAgain(node="b", incarnation=1))
    del blocker
    on = {world.decider.state.jobs[one].current.claims[0].node for one in (quick, long)}  # type: ignore[union-attr]
    assert on == {"a"}
    world.send(silent("a", 20))
    assert world.state_of(quick) == "running"
    events = world.send(silent("a", 30))
    freed = [e for e in events if isinstance(e, ledger.DevicesFreed)]
    assert [(e.job_id, e.evidence) for e in freed] == [(quick, Evidence.LEASE_ENDED)]
    assert world.state_of(long) == "running"
    assert "node.left" not in kinds(events)
    assert world.checker.finish().violations == []


def test_work_that_is_kept_is_not_given_up_by_any_silence() -> None:
    world = World(node("a", 2), node("b", 2))
    kept, other = running(world, leased("kept", 0), leased("other", 300))
    state = world.decider.state
    home = state.jobs[kept].current.claims[0].node  # type: ignore[union-attr]
    world.send(silent(home, 300))
    events = world.send(lost(home))
    assert "node.left" not in kinds(events)
    assert world.state_of(kept) == "running"
    assert state.silent[home].kept
    assert world.send(lost(home)) == []
    assert kinds(world.send(inbox.NodeHeardAgain(node=home, incarnation=1)))[0] == "node.heard"
    assert world.state_of(kept) == "running"
    assert state.jobs[kept].attempts == 1
    del other
    assert world.checker.finish().violations == []


def test_what_is_held_on_a_node_is_given_up_when_that_it_is_silent_is_told_as_its_loss() -> None:
    """Whoever grants leases may have said nothing before: what was held there was held on, for who could run elsewhere."""
    world = World(node("a", 2))
    kept, low = running(world, leased("kept", 0, priority=300), leased("low", 300, priority=100))
    first = world.submit(leased("first", 300, priority=300, preempts=True))
    world.send(*preemption.plans(world.decider.state, world.now_us, len(world.records)))
    assert (list(world.decider.state.holds), world.state_of(low)) == ([first], "preempting")
    events = world.send(lost("a"))
    assert kinds(events)[:2] == ["node.silent", "hold.released"]
    assert (world.decider.state.holds, world.state_of(kept)) == ({}, "running")
    world.check()


def test_a_nodes_lease_may_be_shorter_than_those_of_its_work() -> None:
    """Found by seed 4236: a class may say more than its nodes get. What is not kept ends with its node's lease, also where the
    silence goes on for work that is kept; the auditor took that for a lie."""
    world = World(node("a", 2))
    kept, other = running(world, leased("kept", 0), leased("other", 60))
    world.send(inbox.NodeLost(node="a", incarnation=1, silent_s=8))
    assert (world.state_of(kept), world.state_of(other)) == ("running", "queued")
    world.check()


@pytest.mark.parametrize("late", [
    inbox.NodeSilent(node="a", incarnation=1, silent_s=40, ended_lease_s=30),
    inbox.NodeLost(node="a", incarnation=1, silent_s=400),
])  # fmt: skip
def test_what_is_said_of_a_silence_that_is_over_ends_nothing_new(late: inbox.NodeSilent | inbox.NodeLost) -> None:
    """It came late, by a slow way: the node was heard meanwhile, and runs what was granted since."""
    world = World(node("a", 1))
    world.send(silent("a"))
    about = late.model_copy(update={"since_us": world.decider.state.silent["a"].since_us})
    world.send(inbox.NodeHeardAgain(node="a", incarnation=1))
    (new,) = running(world, leased("new", 30))
    assert world.send(about) == []
    world.send(silent("a"), after_us=60_000_000)
    assert world.send(about) == [], "another silence, of which nothing of that kind is known"
    assert world.state_of(new) == "running"
    world.check()


@pytest.mark.parametrize("late", [silent("a"), silent("a", 30), lost("a")])
def test_what_a_granter_says_after_its_successor_counts_for_nothing(late: inbox.NodeSilent | inbox.NodeLost) -> None:
    """It was frozen before it sent it. Its successor has renewed the node's lease."""
    world = World(node("a", 1))
    world.send(inbox.GranterClaimed(epoch=1, holder="frozen", term_s=5, max_lease_s=300))
    world.send(inbox.GranterClaimed(epoch=2, holder="next", term_s=5, max_lease_s=300))
    (new,) = running(world, leased("new", 30))
    assert world.send(late.model_copy(update={"epoch": 1})) == []
    assert world.state_of(new) == "running"
    world.send(late.model_copy(update={"epoch": 2}), after_us=400_000_000)
    assert (world.state_of(new) == "running") is (late == silent("a"))
    world.check()


def test_which_leases_have_ended_is_told_once_and_grows() -> None:
    world = World(node("a", 1))
    told = [world.send(silent("a", ended_s)) for ended_s in (0, 5, 5, 10, 5, 0)]
    assert [[event.ended_lease_s for event in events] for events in told] == [[0], [5], [], [10], [], []]
    world.check()


def test_an_operator_may_declare_a_silent_node_dead_and_its_life_is_over_for_good() -> None:
    world = World(node("a", 1))
    (kept,) = running(world, leased("kept", 0))
    dead = inbox.NodeDead(node="a", fenced_by="BMC power off, ticket 12", user="olga")
    (refused,) = world.send(dead)
    assert "not silent" in refused.reason
    world.send(lost("a"))
    events = world.send(dead)
    assert kinds(events)[0] == "node.declared-dead"
    assert (events[0].fenced_by, events[0].user, events[0].incarnation) == ("BMC power off, ticket 12", "olga", 1)
    assert {"devices.freed", "job.requeued", "node.left"} <= set(kinds(events))
    assert world.state_of(kept) == "queued"
    (same_life,) = world.send(inbox.NodeRegistered(incarnation=1, inventory=node("a", 1), lease_s=10))
    assert same_life.kind == "input.rejected"
    assert "node.joined" in kinds(world.send(inbox.NodeRegistered(incarnation=2, inventory=node("a", 1), lease_s=10)))
    assert world.checker.finish().violations == []


@pytest.mark.parametrize("said", [{"incarnation": 7}, {"node": "nowhere"}])
def test_an_operators_word_about_another_life_or_node_is_refused(said: dict[str, Any]) -> None:
    world = World(node("a", 1))
    world.send(silent("a"))
    (refused,) = world.send(inbox.NodeDead.model_validate({"node": "a", "fenced_by": "x"} | said))
    assert refused.kind == "input.rejected"


def test_an_operators_word_about_a_life_that_is_over_ends_nothing_of_the_next() -> None:
    world = World(node("a", 1))
    world.send(silent("a"))
    world.send(inbox.NodeRegistered(incarnation=2, inventory=node("a", 1), lease_s=10))
    (kept,) = running(world, leased("kept", 0))
    world.send(inbox.NodeSilent(node="a", incarnation=2, silent_s=60))
    (refused,) = world.send(inbox.NodeDead(node="a", incarnation=1, fenced_by="BMC power off, an hour ago"))
    assert "node a is in life 2 and not 1, it has come back since" in refused.reason
    assert world.state_of(kept) == "running"
    assert "node.left" in kinds(world.send(inbox.NodeDead(node="a", incarnation=2, fenced_by="BMC power off")))
    world.check()


def test_while_older_readers_live_silence_is_told_as_it_was() -> None:
    world = World(node("a", 1))
    (one,) = running(world, leased("one", 30))
    world.decider = Decider.load(world.decider.dump(), allowed=lambda: FIRST)
    assert world.send(silent("a", 60)) == []
    assert world.send(inbox.GranterClaimed(epoch=1, holder="x", term_s=1, max_lease_s=1)) == []
    assert "node.left" in kinds(world.send(lost("a")))
    assert world.state_of(one) == "queued"


def test_a_snapshot_remembers_silence_and_the_granter() -> None:
    world = World(node("a", 2), node("b", 2))
    running(world, leased("kept", 0))
    world.send(silent("a"), inbox.GranterClaimed(epoch=1, holder="p1", term_s=10, max_lease_s=300))
    before = world.decider.state
    again = snapshot.load(iter(list(snapshot.dump(before)))).state
    assert dumped(again) == dumped(world.decider.state)
    assert (again.silent, again.granter_epoch) == ({"a": Silence(before.silent["a"].since_us, kept=False)}, 1)
    rows = again.fleet.nodes["a"].rows
    assert not again.fleet.up[rows].any()
    assert Deciders().new().state.silent == {}


# ------------------------------------------------------------------------------------------------------ the auditor


def record(events: list[Any], seq: int, t_us: int = 10**9) -> ledger.LedgerRecord:
    return ledger.LedgerRecord(
        pool="test", prev_seq=seq - 1, prev_hash="", inbox_seq=seq + 100, t_us=t_us, writer="w", events=tuple(events)
    )


@pytest.mark.parametrize("lie", ["kept work is ended by silence", "a grant on a silent node", "heard without silence",
                                 "an epoch twice"])  # fmt: skip
def test_the_auditor_sees_leases_that_were_broken(lie: str) -> None:
    world = World(node("a", 2))
    (kept,) = running(world, leased("kept", 0))
    claims = world.decider.state.jobs[kept].current.claims  # type: ignore[union-attr]
    checker = Checker()
    for seq, one in enumerate(world.records, 1):
        checker.step(seq, one, valid=True)
    seq = len(world.records)
    quiet = ledger.NodeSilence(node="a", incarnation=1, silent_s=60)
    granter = ledger.GranterNamed(epoch=1, holder="p", term_s=1, max_lease_s=1)
    freed = ledger.DevicesFreed(
        job_id=kept, attempt=1, node="a", devices=(claims[0].device,), evidence=Evidence.LEASE_ENDED
    )
    other = world.submit(leased("other", 300))
    grant = next(e for r in world.records for e in r.events if e.kind == "job.granted" and e.job_id == other)
    queued = next(e for r in world.records for e in r.events if e.kind == "job.queued" and e.job_id == other)
    lies: dict[str, list[Any]] = {
        "kept work is ended by silence": [quiet, freed],
        "a grant on a silent node": [quiet, queued, grant],
        "heard without silence": [ledger.NodeHeard(node="a", incarnation=1)],
        "an epoch twice": [granter, granter],
    }
    checker.step(seq + 1, record(lies[lie], seq + 1), valid=True)
    said = {
        "kept work is ended by silence": "is kept",
        "a grant on a silent node": "is not heard",
        "heard without silence": "was not silent",
        "an epoch twice": "in epoch 1 after 1",
    }
    assert any(said[lie] in violation for violation in checker.finish().violations), checker.finish().violations


# ------------------------------------------------------------------------------------------------------- the granter


def granter(name: str = "p1", began: float = 0.0) -> Granter:
    return Granter(name, Watch(began, TERMS), term_s=10, broker_s=2, standby_s=3)


def test_the_first_claim_of_an_epoch_gets_the_right() -> None:
    world = World(node("a", 1))
    claims = [inbox.GranterClaimed(epoch=1, holder=name, term_s=10, max_lease_s=300) for name in ("p1", "p2")]
    (named,) = world.send(*claims)
    assert (named.kind, named.holder, named.epoch) == ("lease.granter", "p1", 1)
    assert world.send(inbox.GranterClaimed(epoch=3, holder="p3", term_s=10, max_lease_s=300)) == []
    assert kinds(world.send(inbox.GranterClaimed(epoch=2, holder="p2", term_s=10, max_lease_s=300))) == [
        "lease.granter"
    ]
    assert world.checker.finish().violations == []


def test_a_granter_grants_only_while_it_was_lately_seen_to_be_the_one() -> None:
    one = granter()
    assert not one.may_grant(0)
    one.named(GrantRight(1, "p1", 10, 300), 1)
    assert not one.may_grant(1), "named long ago, perhaps: it must be seen that nobody came after"
    one.confirm(2)
    assert one.may_grant(12)
    assert not one.may_grant(12.1)
    one.confirm(13)
    one.named(GrantRight(2, "p2", 10, 300), 14)
    assert not one.may_grant(14)
    one.confirm(15)
    assert not one.may_grant(15)


def test_a_standby_claims_when_the_granter_is_not_heard_and_once_at_a_time() -> None:
    two = granter("p2", began=0)
    two.named(GrantRight(4, "p1", 10, 300), 0)
    two.other_heard_at = 1
    assert two.claim(3.9) == 0
    assert two.claim(4.0) == 5
    assert two.claim(5.0) == 0, "the claim is on its way"
    assert two.claim(7.1) == 5


def test_who_lost_the_right_gives_its_successor_the_time_to_be_heard() -> None:
    """It claimed with its next tick, as it had heard no other granter before: two that both lived took the right from each
    other each second or two, and nobody was ever reported lost (the simulation, with messages lost all the time)."""
    one = granter("p1")
    one.named(GrantRight(1, "p1", 10, 300), 100)
    one.named(GrantRight(2, "p2", 10, 300), 200)
    assert one.claim(201) == 0
    assert one.claim(203) == 3


def test_a_successor_reports_nobody_lost_before_its_predecessors_leases_have_surely_ended() -> None:
    """Everybody is silent from the start. The predecessor may grant for one more term; the longest lease follows."""
    two = granter("p2")
    two.watch.joined("a", 1, 0)
    two.named(GrantRight(1, "p1", 20, 300), 0)
    two.named(GrantRight(2, "p2", 10, 300), 100)
    earliest = 100 + 20 + TERMS.patience(300)
    assert two.watch.overdue(earliest) == []
    assert two.watch.silences(100 + 20 + 1, 15) == []
    assert [m.node for m in two.watch.overdue(earliest + 3)] == ["a"]
    longer = granter("p2")
    longer.watch.joined("a", 1, 0)
    longer.named(GrantRight(1, "p1", 20, 900), 0)
    longer.named(GrantRight(2, "p2", 10, 300), 100)
    assert longer.watch.overdue(100 + 20 + TERMS.patience(900)) == [], "the predecessor granted longer ones"


def test_what_silence_has_surely_ended_grows_with_it() -> None:
    assert TERMS.ended(20) == 10
    assert TERMS.ended(36) == 20
    assert TERMS.ended(37) == 30
    assert TERMS.ended(10_000) == 7200
    for silent_s in range(400):
        assert TERMS.patience(TERMS.ended(silent_s)) <= silent_s or TERMS.ended(silent_s) == 0


def test_a_node_with_kept_work_is_renewed_again_after_it_was_given_up() -> None:
    watch = Watch(0, TERMS)
    watch.joined("a", 1, 0)
    watch.heard([("a", 1)], 300, 1)
    assert [m.node for m in watch.overdue(400)] == ["a"]
    assert watch.heard([("a", 1)], 300, 401) == (), "given up, until the ledger says otherwise"
    watch.kept("a", 1)
    assert watch.overdue(402) == []
    assert watch.heard([("a", 1)], 300, 403) == ("a",)
    watch.back("a")
    assert [m.node for m in watch.overdue(1000)] == ["a"]


def test_a_node_whose_shorter_leases_are_told_to_have_ended_is_renewed_when_the_ledger_says_so() -> None:
    """A part of such a lease that it has not heard of yet would be started on that renewal, and freed by the message."""
    watch = Watch(0.0, TERMS)
    watch.joined("a", 1, 0.0)
    watch.tell_ended("a", 20)
    assert watch.heard([("a", 1)], 300, 1) == ()
    watch.told_ended("a", refused=False)
    watch.tell_ended("a", 30)
    watch.told_ended("a", refused=True)
    assert watch.heard([("a", 1)], 300, 2) == (), "the first message may be stored"
    watch.ended("a", 20)
    assert watch.heard([("a", 1)], 300, 3) == (), "the second one would free more"
    watch.ended("a", 30)
    assert watch.heard([("a", 1)], 300, 4) == ("a",)


@pytest.mark.parametrize("over", [
    lambda watch: watch.told_ended("a", refused=True),
    lambda watch: watch.back("a"),
    lambda watch: watch.joined("a", 2, 1.0),
    lambda watch: watch.ended("a", 1e9),
])  # fmt: skip
def test_nothing_waits_for_a_message_that_was_refused_or_means_nothing_any_more(over: Any) -> None:
    watch = Watch(0.0, TERMS)
    watch.joined("a", 1, 0.0)
    watch.tell_ended("a", 20)
    over(watch)
    assert watch.heard([("a", 2)], 300, 2) == ("a",)
    watch.told_ended("a", refused=False)
    assert watch.heard([("a", 2)], 300, 2) == ("a",), "its answer comes late"


def test_node_lives_are_folded_and_come_back_from_a_snapshot() -> None:
    world = World(node("a", 1), node("b", 1), node("c", 1))
    world.send(inbox.GranterClaimed(epoch=1, holder="p1", term_s=10, max_lease_s=300))
    world.send(silent("a"), lost("b"))
    lives = NodeLives()
    for seq, one in enumerate(world.records, 1):
        lives.apply(one, seq)
        lives.skip(seq)
    assert (lives.up, lives.left) == ({"a": 1, "c": 1}, {"b": 1})
    assert lives.silent == {"a": (len(world.records), world.decider.state.silent["a"].since_us, False, 0)}
    assert lives.right == GrantRight(1, "p1", 10, 300)
    again = NodeLives.load(iter(list(lives.dump())))
    assert list(again.dump()) == list(lives.dump())
    assert (again.silent, again.right) == (lives.silent, lives.right)


# -------------------------------------------------------------------------------------------------------- classes


@pytest.mark.parametrize(("text", "lease_s"), [("30s", 30), ("5m", 300), ("2h", 7200), ("keep", 0)])
def test_a_class_says_how_long_a_lease_lasts(text: str, lease_s: float) -> None:
    made = PriorityClass(name="x", priority=1, preempts=False, description="x", lease=text)
    assert made.lease_s == lease_s


@pytest.mark.parametrize("text", ["0s", "5", "forever", "-1s", "1d", ""])
def test_a_lease_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="lease"):
        PriorityClass(name="x", priority=1, preempts=False, description="x", lease=text)


def test_running_work_survives_five_minutes_unless_its_class_wants_to_move() -> None:
    """What is left of a lease when renewals stop is less than its length by the time between two of them."""
    agent, granted = AgentSettings(insecure=True), LeaseSettings(insecure=True)
    left_s = {c.name: min(c.lease_s, agent.lease_s) - agent.heartbeat_s for c in DEFAULT_CLASSES}
    assert left_s.pop("serving") < 30
    assert min(left_s.values()) >= 300 + granted.term_s + granted.standby_s
    assert agent.lease_s <= granted.max_lease_s


def test_a_record_that_says_no_lease_is_of_300_seconds_for_ever() -> None:
    """Teams' lines leave out what is so by default: with another one here each line of the past would have another hash."""
    for message in (inbox.JobAdmitted, ledger.JobQueued, DesiredPart):
        assert message.model_fields["lease_s"].default == 300
