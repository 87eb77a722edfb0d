"""A team that an operator has paused: what waits keeps its place and is not granted, what runs goes on or saves its work."""

import json

import pytest

from libs.core.admission.evaluate import AdmissionContext, NotAdmitted, evaluate
from libs.core.admission.fleet_shape import FleetShape
from libs.core.billing.metering import Meter
from libs.core.explain.dry_run import shape_of_fleet
from libs.core.explain.queue_shares import queue_shares
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain, queue_view
from libs.core.projections.pool_status import StatusFigures
from libs.core.scheduling import cycle, limits, preemption
from libs.core.scheduling.decider import Decider
from libs.core.scheduling.reactions import Decision, InputRefused
from libs.core.scheduling.reactions.teams import offboard_team, suspend_team
from libs.core.state import snapshot
from libs.core.state.desired import node_state
from libs.core.state.formats import FIRST
from schemas import inbox, ledger
from schemas.jobs import JobSpec, JobState
from schemas.nodes import Action
from schemas.pool_status import MOST_SUSPENDED, Quantiles
from schemas.queues import Queue
from schemas.requests import SubmitJob
from schemas.subjects import OPERATOR
from tests.core.builders import World, job, node

PAUSE = inbox.SuspendTeam(team="research", reason="unpaid", user="olga")
STOP = PAUSE.model_copy(update={"stop": True})
LEAVES = inbox.OffboardTeam(team="research", reason="its contract has ended", user="olga")
GO_ON = inbox.ResumeTeam(team="research", reason="paid", user="olga")
S = 1_000_000


def state_of(w: World, job_id: str) -> JobState:
    return w.decider.state.jobs[job_id].state


def two_teams() -> tuple[World, str, str, str]:
    """research runs on half of a node and waits for more, and so does blue."""
    w = World(node("n0"))
    runs = w.submit(job("runs", 4))
    w.started(runs)
    blue = w.submit(job("blue", 4, team="blue"))
    w.started(blue)
    return w, runs, w.submit(job("waits", 4)), blue


def test_what_waits_is_not_granted_and_keeps_its_age() -> None:
    w, runs, waits, blue = two_teams()
    w.send(PAUSE)
    w.released(blue)
    assert (state_of(w, waits), state_of(w, runs)) == (JobState.QUEUED, JobState.RUNNING)
    told = explain(w.decider.state, w.decider.state.jobs[waits], Reasons(w.decider.state), seen_by="research")
    assert told.reason == "suspended"
    assert told.text.startswith("team research is suspended since ")
    assert told.text.endswith("by olga: unpaid")
    assert [(one.job_id, one.reason) for one in queue_view(w.decider.state, Reasons(w.decider.state), 9)] == [
        (waits, "suspended")
    ]
    assert cycle.plan(w.decider.state, w.now_us).grants == []
    later = w.submit(job("later-blue", 4, team="blue"))
    assert state_of(w, later) is JobState.GRANTED
    w.released(later)
    w.send(GO_ON)
    assert state_of(w, waits) is JobState.GRANTED
    w.check()


def test_what_runs_saves_its_work_waits_and_pays_with_no_retry() -> None:
    w, runs, _, _ = two_teams()
    w.send(STOP)
    (piece,) = node_state(w.decider.state, "n0", "test", 1)
    assert {part.job_id: part.action for part in piece.parts}[runs] is Action.CHECKPOINT
    w.checkpointed(runs, 7)
    w.released(runs, exit_code=143, own_exit=False)
    parked = w.decider.state.jobs[runs]
    assert (parked.state, parked.losses, parked.not_before_us) == (JobState.QUEUED, 0, 0)
    assert parked.resume is not None
    w.send(GO_ON)
    assert state_of(w, runs) is JobState.GRANTED
    w.check()


def test_a_job_that_ends_well_while_it_saves_has_ended_well() -> None:
    w, runs, _, _ = two_teams()
    w.send(STOP)
    w.released(runs)
    assert w.decider.state.finished_by_state == {"succeeded": 1}
    w.check()


def test_a_suspended_team_submits_nothing_also_when_admission_did_not_know_yet() -> None:
    w, _, waits, _ = two_teams()
    w.send(PAUSE)
    request = SubmitJob(client_key="new", job=JobSpec(command=("true",)))
    judged = evaluate(request, "research", AdmissionContext(shape_of_fleet(w.decider.state), limits.room))
    assert isinstance(judged, NotAdmitted)
    assert judged.refusals[0].reason.field == "team"
    assert "team research is suspended since" in judged.refusals[0].reason.problem
    late = w.submit(job("late"))
    assert late not in w.decider.state.jobs
    (rejected,) = [e for e in w.records[-1].events if isinstance(e, ledger.InputRejected)]
    assert "suspended" in rejected.reason
    w.send(inbox.CancelRequested(job_id=waits, team="research", reason="let us leave"))
    assert waits not in w.decider.state.jobs
    w.check()


def test_a_request_that_was_refused_is_no_job_when_it_comes_once_more() -> None:
    """Found by seed 3636: admission sent a job twice, the team was resumed in between, and a job ran that had been refused."""
    w, _, _, _ = two_teams()
    w.send(PAUSE)
    sent = job("late").model_copy(update={"submitted_us": w.now_us})
    for message in (sent, GO_ON, sent):
        w.send(message)
    assert sent.job_id not in w.decider.state.jobs
    (rejected,) = [e for e in w.records[-1].events if isinstance(e, ledger.InputRejected)]
    assert "was sent before team research was resumed: submit it again" in rejected.reason
    assert (
        Decider.load(list(w.decider.dump())).state.resumed
        == w.decider.state.resumed
        == {"research": (w.now_us - 1000, w.now_us - 1000)}
    )
    again = sent.model_copy(update={"submitted_us": w.now_us})
    assert w.submit(again) in w.decider.state.jobs
    w.send(PAUSE, after_us=8 * 86_400_000_000)
    w.send(PAUSE.model_copy(update={"team": "blue"}), GO_ON.model_copy(update={"team": "blue"}))
    assert list(w.decider.state.resumed) == ["blue"], "forgotten with the client keys of then"
    w.check()


def test_nor_after_a_pause_of_everything() -> None:
    """Until the first tick ledger time was ten minutes behind the broker's clock: which nobody has set."""
    w, _, _, _ = two_teams()
    w.behind_us = -600 * S
    w.send(PAUSE, behind=True)
    sent = job("late").model_copy(update={"submitted_us": w.wall_us})
    w.send(sent, behind=True)
    w.send(GO_ON, behind=True)
    after = job("after").model_copy(update={"submitted_us": w.wall_us})
    w.behind_us = 0
    w.send(inbox.Tick(), after_us=600 * S)
    w.send(sent, after)
    assert sent.job_id not in w.decider.state.jobs
    assert after.job_id in w.decider.state.jobs
    w.check()


@pytest.mark.parametrize("by_s", [-3600, 3600])
def test_nor_when_the_brokers_clock_was_set_since(by_s: int) -> None:
    """Found by seed 40634: by the distance of the clocks after the jump, the request seemed to be newer than that its team was
    resumed."""
    w, _, _, _ = two_teams()
    w.send(after_us=7200 * S)
    w.send(PAUSE)
    sent = job("late").model_copy(update={"submitted_us": w.wall_us})
    w.send(sent, GO_ON)
    w.send(after_us=60 * S)
    between = job("between").model_copy(update={"submitted_us": w.wall_us})
    w.set_clock(by_s * S)
    w.send(sent, between)
    assert sent.job_id not in w.decider.state.jobs
    assert w.decider.state.jobs[between.job_id].submitted_us == w.now_us - 2000, "as it was when it was stored"
    w.send(after_us=60 * S)
    after = job("after").model_copy(update={"submitted_us": w.wall_us})
    w.send(after)
    assert w.decider.state.jobs[after.job_id].submitted_us == w.now_us - 1000
    w.check()
    now = list(snapshot.dump(w.decider.state))
    header = json.loads(now[0][1:])
    w.set_clock(S)
    later, fewer = list(snapshot.dump(w.decider.state)), header.pop("jumps")
    assert snapshot.unlike([b"H" + json.dumps(header).encode(), *now[1:]], now) == "", "of a release before"
    header = json.loads(later[0][1:])
    assert header["jumps"][0] == fewer[0]
    header["jumps"] = header["jumps"][1:]
    assert snapshot.unlike([b"H" + json.dumps(header).encode(), *later[1:]], later) == "", "which went on from that"
    header["jumps"] = fewer
    assert snapshot.unlike([b"H" + json.dumps(header).encode(), *later[1:]], later) == "in jumps"
    header = json.loads(later[0][1:])
    del header["resumed_wall"]
    (known,) = snapshot.load([b"H" + json.dumps(header).encode(), *later[1:]]).state.resumed.values()
    assert known == (w.decider.state.resumed["research"].t_us, None)
    assert snapshot.unlike([b"H" + json.dumps(header).encode(), *later[1:]], later) == ""


def test_nobody_gives_way_to_a_suspended_team() -> None:
    w, _, _, _ = two_teams()
    urgent = w.submit(job("urgent", 8, priority=100, preempts=True))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    w.send(PAUSE)
    assert preemption.plans(w.decider.state, w.now_us, len(w.records)) == []
    w.send(plan)
    (declined,) = [e for e in w.records[-1].events if isinstance(e, ledger.PlanDeclined)]
    assert (declined.reason, urgent in w.decider.state.holds) == (ledger.PlanDeclineReason.BENEFICIARY_GONE, False)
    w.check()


def test_it_survives_snapshots_in_every_fold_that_asks_for_it() -> None:
    w, _, waits, _ = two_teams()
    w.send(PAUSE)
    again = Decider.load(list(w.decider.dump())).state
    assert again.suspended == w.decider.state.suspended
    assert {key.team for key in again.parked} == {"research"}
    assert not again.queues
    shape = FleetShape()
    for seq, record in enumerate(w.records, 1):
        shape.apply(record, seq)
    assert FleetShape.load(iter(list(shape.dump()))).suspended == again.suspended
    assert waits in again.jobs


def test_said_again_it_keeps_its_beginning_and_of_nobody_else_is_it_told() -> None:
    w, _, _, _ = two_teams()
    w.send(PAUSE)
    since = w.decider.state.suspended["research"].since_us
    w.send(PAUSE, after_us=5_000_000)
    assert w.records[-1].events == () or not any(e.kind == "team.suspended" for e in w.records[-1].events)
    w.send(PAUSE.model_copy(update={"reason": "still unpaid"}))
    assert w.decider.state.suspended["research"] == (since, "still unpaid", "olga")
    none = Quantiles(count=0)
    glance = StatusFigures(w.decider.state, "test", 1)
    assert [one.team for one in glance.of_all(none, none).suspended] == ["research"]
    assert [one.team for one in glance.of_team("research", none, none).suspended] == ["research"]
    assert glance.of_team("blue", none, none).suspended == ()


def test_the_bill_of_what_runs_on_is_the_same_to_the_microsecond() -> None:
    sums = []
    for paused in (False, True):
        w, runs, _, _ = two_teams()
        w.send(PAUSE if paused else inbox.Tick())
        w.send(inbox.Tick(), after_us=9_000_000)
        w.released(runs)
        meter = Meter()
        for seq, record in enumerate(w.records, 1):
            meter.apply(record, seq)
        sums.append(w.checker.finish().by_team["research"])
    assert sums[0] == sums[1] > 0


def test_while_readers_of_an_older_format_live_nobody_is_suspended() -> None:
    w, _, _, _ = two_teams()
    decision = Decision(w.decider.state, w.now_us, allowed=FIRST)
    with pytest.raises(InputRefused, match="cannot suspend teams"):
        suspend_team(decision, PAUSE)
    assert not decision.events


def test_what_cannot_be_is_refused() -> None:
    w, _, _, _ = two_teams()
    w.send(inbox.SuspendTeam(team="operator", reason="x"))
    w.send(GO_ON)
    reasons = [e.reason for record in w.records for e in record.events if isinstance(e, ledger.InputRejected)]
    assert "cannot be suspended" in reasons[0]
    assert "is not suspended" in reasons[1]
    assert not w.decider.state.suspended


def rejections(w: World) -> list[str]:
    return [e.reason for record in w.records for e in record.events if isinstance(e, ledger.InputRejected)]


def test_a_team_leaves_once_nothing_of_it_waits_or_runs_and_may_come_back() -> None:
    w, runs, waits, _ = two_teams()
    w.send(LEAVES)
    w.send(PAUSE)
    w.send(LEAVES)
    w.released(runs)
    w.send(LEAVES)
    assert [one.partition(": ")[0] for one in rejections(w)] == [
        "team research is not suspended",
        f"{runs} of team research is running",
        f"{waits} of team research is queued",
    ]
    assert not w.decider.state.left
    w.send(inbox.CancelRequested(job_id=waits, team="research", reason="we leave"))
    (told,) = w.send(LEAVES)
    assert (told.kind, told.team, told.user) == ("team.left", "research", "olga")
    assert w.send(LEAVES) == [], "it is said once"
    w.send(PAUSE.model_copy(update={"reason": "it stays suspended"}))
    assert w.decider.state.left == {"research": w.records[-3].t_us}
    assert Decider.load(list(w.decider.dump())).state.left == w.decider.state.left
    none = Quantiles(count=0)
    glance = StatusFigures(w.decider.state, "test", 1)
    assert [one.left_us for one in glance.of_team("research", none, none).suspended] == [w.records[-3].t_us]
    w.send(GO_ON)
    assert not w.decider.state.left
    assert Decider.load(list(w.decider.dump())).state.left == {}
    assert w.checker.finish().violations == []


def test_while_readers_of_an_older_format_live_nobody_has_left() -> None:
    w = World(node("n0"), allowed=6)
    w.send(PAUSE)
    w.send(LEAVES)
    assert ["knows no teams that left" in one for one in rejections(w)] == [True]
    assert not w.decider.state.left
    decision = Decision(w.decider.state, w.now_us, allowed=7)
    offboard_team(decision, LEAVES)
    assert [event.kind for event in decision.events] == ["team.left"]


def test_the_operator_is_told_of_no_more_suspended_teams_than_an_answer_holds() -> None:
    w = World(node("n0"))
    for number in range(MOST_SUSPENDED + 2):
        team = f"team-{number:03d}"
        w.send(inbox.SuspendTeam(team=team, reason="it leaves", user="olga"))
        if number % 2:
            w.send(inbox.OffboardTeam(team=team, user="olga"))
    none = Quantiles(count=0)
    glance = StatusFigures(w.decider.state, "test", 1)
    told = [one.team for one in glance.of_all(none, none).suspended]
    assert told == sorted(told)
    assert {f"team-{n:03d}" for n in range(MOST_SUSPENDED + 2)} - set(told) == {"team-001", "team-003"}
    assert [one.team for one in glance.of_team("team-001", none, none).suspended] == ["team-001"]


def test_what_a_suspended_team_waits_for_is_in_nobodys_share() -> None:
    """`baton get queues` told the others half of a pool of which they may have all."""
    w = World(node("n0"))
    w.send(inbox.ApplyQueues(version=1, queues=(Queue(name="research"), Queue(name="blue"))))
    for team in ("research", "blue"):
        w.send(*(job(f"{team}-{n}", 4, team=team) for n in range(3)))

    def shares() -> dict[str, int]:
        return {one.queue.name: one.share_milli for one in queue_shares(w.decider.state, OPERATOR).shares}

    assert shares() == {"research": 4000, "blue": 4000}
    w.send(PAUSE)
    (told,) = (one for one in queue_shares(w.decider.state, OPERATOR).shares if one.queue.name == "research")
    assert (told.waiting_jobs, told.held_milli) == (1, 8000)
    for runs in [one.id for one in w.decider.state.jobs.values() if one.current is not None]:
        w.released(runs)
    assert shares() == {"research": 0, "blue": 8000}
    w.check()
