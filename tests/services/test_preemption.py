"""Preemption as a service: one plan per beneficiary, none while one is pending, the next when it was stale."""

import asyncio
import os
import signal
import sys
from typing import Any

import psutil
import pytest
from faststream.asgi import AsgiFastStream

from libs.ledger.chain import GENESIS
from libs.ledger.snapshots import SnapshotStore
from schemas import inbox
from schemas.ids import job_id
from schemas.ledger import (
    AttemptPreempting,
    AttemptRunning,
    DevicesHeld,
    JobGranted,
    JobQueued,
    PlanDeclined,
    PlanDeclineReason,
    QuotaSet,
)
from schemas.queues import Queue
from schemas.subjects import DEAD, dead
from services.placement.app import make_app as make_placement
from services.placement.settings import PlacementSettings
from services.preemption import planner as planner_module
from services.preemption.app import make_app
from services.preemption.settings import PreemptionSettings
from tests.admission.running import running
from tests.core.builders import job, node
from tests.kit.waiting import stored, until
from tests.services.pool import Pool

LEADS_S = 1.0
IDLE_S = 2.5
"""Preemption looks at a ledger that stands still every second: so it had two chances to repeat itself."""


@pytest.fixture
def preemption(world: Pool, nats_url: str) -> Any:
    def make(**settings: Any) -> AsgiFastStream:
        return make_app(PreemptionSettings(nats_url=nats_url, pool=world.name, **settings))

    return make


@pytest.fixture
def placement(world: Pool, nats_url: str, redis_url: str) -> Any:
    def make(writer_id: str = "w1", **settings: Any) -> AsgiFastStream:
        known = PlacementSettings(nats_url=nats_url, redis_url=redis_url, pool=world.name, **settings)
        return make_placement(known, writer_id=writer_id)

    return make


async def full_pool(world: Pool, *, jobs: int = 2) -> list[JobGranted]:
    """A node of four devices, all held by running jobs of the lowest priority."""
    await world.put(inbox.NodeRegistered(incarnation=1, inventory=node("n1", 4), lease_s=10))
    await world.put(*(job(f"low{i}", 4 // jobs, team="red") for i in range(jobs)))
    granted = [await world.event(JobGranted, job_id=job_id("red", f"low{i}")) for i in range(jobs)]
    for one in granted:
        await world.started(one)
        await world.event(AttemptRunning, job_id=one.job_id)
    return granted


async def test_a_plan_is_sent_once_and_not_again_while_it_is_pending(
    world: Pool, placement: Any, preemption: Any
) -> None:
    urgent = job("urgent", 2, team="blue", priority=5, preempts=True)
    async with running(placement()):
        low = await full_pool(world)
        await world.put(urgent)
        await world.event(JobQueued, job_id=urgent.job_id)
    # Placement is away: nobody reads the plan.
    async with running(preemption()):
        (plan,) = await until(world.plans)
        await asyncio.sleep(IDLE_S)
        assert await world.plans() == [plan]
        assert plan.beneficiary == urgent.job_id
        assert len(plan.victims) == 1, "the two devices of one job are enough"
        assert set(plan.victims) <= {one.job_id for one in low}

        async with running(placement("w2")):
            held = await world.event(DevicesHeld)
            preempted = await world.event(AttemptPreempting)
            assert (held.job_id, set(held.devices)) == (urgent.job_id, set(plan.devices))
            assert (preempted.job_id, preempted.beneficiary) == (plan.victims[0], urgent.job_id)
            await asyncio.sleep(IDLE_S)
            assert await world.plans() == [plan], "planned again although devices are held already"

            victim = next(one for one in low if one.job_id == plan.victims[0])
            await world.released(victim, own_exit=False)
            granted = await world.event(JobGranted, job_id=urgent.job_id)
            assert {claim.device for claim in granted.claims} == set(plan.devices)


async def test_what_a_team_borrowed_goes_back_to_whom_it_is_guaranteed(
    world: Pool, placement: Any, preemption: Any
) -> None:
    """Red runs on the whole pool. Blue asks for its half, of the same class: it has it once red's job saved its work."""
    waits = job("waits", 2, team="blue")
    async with running(placement()), running(preemption()):
        low = await full_pool(world)
        halves = tuple(Queue(name=team, guaranteed={"*": 2000}) for team in ("red", "blue"))
        await world.put(inbox.ApplyQueues(version=1, queues=halves, user="olga"))
        await world.put(waits, job("more", 1, team="blue"))
        preempted = await world.event(AttemptPreempting)
        assert (preempted.beneficiary, preempted.reason) == (
            waits.job_id,
            "reclaim: queue blue is within its guarantee",
        )
        held = await world.event(DevicesHeld)
        await world.released(next(one for one in low if one.job_id == preempted.job_id), own_exit=False)
        granted = await world.event(JobGranted, job_id=waits.job_id)
        assert {claim.device for claim in granted.claims} == set(held.devices)
        await asyncio.sleep(IDLE_S)
        assert len(await world.plans()) == 1, "blue has its half, and red is left with its own"


async def test_a_plan_that_came_too_late_is_followed_by_a_new_one(world: Pool, placement: Any, preemption: Any) -> None:
    urgent = job("urgent", 2, team="blue", priority=5, preempts=True)
    async with running(placement()):
        low = await full_pool(world)
        await world.put(urgent)
        await world.event(JobQueued, job_id=urgent.job_id)
    stale = inbox.PreemptionPlanned(
        plan_id="stale",
        base_seq=1,
        beneficiary=urgent.job_id,
        victims=(job_id("red", "gone"),),
        devices=tuple(claim.device for claim in low[0].claims),
        cost_device_s=1,
    )
    await world.put(stale)  # waits in the inbox before preemption's own
    async with running(preemption()), running(placement("w2")):
        declined = await world.event(PlanDeclined)
        assert (declined.plan_id, declined.reason) == ("stale", PlanDeclineReason.VICTIM_GONE)
        assert "is not running any more" in declined.text
        held = await world.event(DevicesHeld)
        assert held.job_id == urgent.job_id
        assert held.plan_id not in ("", "stale")
        (own,) = [plan for plan in await world.plans() if plan.plan_id != "stale"]
        assert (held.plan_id, held.cost_device_s) == (own.plan_id, own.cost_device_s)
        letters = await stored(world.js, DEAD, dead("placement"))
        assert not [letter for letter in letters if b"stale" in letter.data], "a stale plan is no error"


STOPS_BEFORE_IT_SENDS = """
import asyncio, os, signal, sys
from services.preemption import app
from services.preemption.settings import PreemptionSettings
from tests.admission.running import running

def stop(where):
    if where == "preemption.planned":
        os.kill(os.getpid(), signal.SIGSTOP)

async def main():
    settings = PreemptionSettings(nats_url=sys.argv[1], pool=sys.argv[2], leader_ttl_s=LEADS_S)
    async with running(app.make_app(settings)):
        await asyncio.Event().wait()

app.failpoint = stop
asyncio.run(main())
"""


async def test_a_planner_that_was_frozen_past_its_role_preempts_nobody_when_it_wakes(
    world: Pool, placement: Any, preemption: Any, nats_url: str
) -> None:
    """It asked whether it leads, planned, and was frozen before it sent. Another led meanwhile; what was planned is history."""
    code = STOPS_BEFORE_IT_SENDS.replace("LEADS_S", str(LEADS_S))
    frozen = await asyncio.create_subprocess_exec(sys.executable, "-c", code, nats_url, world.name)
    process = psutil.Process(frozen.pid)
    try:
        async with running(placement()):
            low = await full_pool(world)
            urgent = job("urgent", 2, team="blue", priority=5, preempts=True)
            await world.put(urgent)
            await until(lambda: process.status() == psutil.STATUS_STOPPED)
            assert await world.plans() == []
            await world.put(inbox.QuotaChanged(team="green", limit_milli=1))  # the other plans on a later record
            await world.event(QuotaSet)
            async with running(preemption(leader_ttl_s=LEADS_S)):
                preempted = await world.event(AttemptPreempting)
            (timely,) = await world.plans()
            victim = next(one for one in low if one.job_id == preempted.job_id)
            await world.released(victim, own_exit=False)
            granted = await world.event(JobGranted, job_id=urgent.job_id)
            await world.started(granted)
            await world.released(granted)
            await world.event(JobGranted, number=2, job_id=victim.job_id)  # the victim runs again
            os.kill(frozen.pid, signal.SIGCONT)
            _, late = await until(lambda: _at_least(world, 2))
            declined = await world.event(PlanDeclined)
            assert (declined.plan_id, declined.reason) == (late.plan_id, PlanDeclineReason.BENEFICIARY_GONE)
            assert late.base_seq < timely.base_seq, "the other planned on a later record"
            said = [event for record in await world.records() for event in record.events]
            assert [event for event in said if isinstance(event, AttemptPreempting)] == [preempted]
    finally:
        frozen.kill()
        await frozen.wait()


async def test_each_beneficiary_has_a_plan_of_its_own(world: Pool, placement: Any, preemption: Any) -> None:
    urgent = [job(f"urgent{i}", 2, team="blue", priority=5, preempts=True) for i in range(2)]
    async with running(placement()):
        await full_pool(world)
        await world.put(*urgent)
        for one in urgent:
            await world.event(JobQueued, job_id=one.job_id)
    async with running(preemption()):
        plans = await until(lambda: _at_least(world, 2))
        await asyncio.sleep(IDLE_S)
        assert len(await world.plans()) == 2
    assert {plan.beneficiary for plan in plans} == {one.job_id for one in urgent}
    assert len({victim for plan in plans for victim in plan.victims}) == 2, "two plans count on one victim"
    assert len({device for plan in plans for device in plan.devices}) == 4


async def test_nobody_is_evicted_for_a_job_that_would_not_fit_even_then(
    world: Pool, placement: Any, preemption: Any
) -> None:
    async with running(placement()), running(preemption()):
        await full_pool(world)
        await world.put(job("too large", 5, team="blue", priority=5, preempts=True))
        await world.put(job("does not preempt", 2, team="blue", priority=5))
        await world.event(JobQueued, job_id=job_id("blue", "does not preempt"))
        await asyncio.sleep(IDLE_S)
        assert await world.plans() == []


async def test_a_restart_goes_on_from_the_snapshot(
    world: Pool, placement: Any, preemption: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(placement(batch=1)):
        async with running(preemption(snapshot_records=100)):
            await full_pool(world)
            await world.put(*(inbox.QuotaChanged(team="green", limit_milli=n) for n in range(1, 120)))
            await world.event(QuotaSet, number=119)
            saved = await until(lambda: snapshot_of(world))
        applied: list[int] = []
        apply = planner_module.PreemptionPlanner.apply

        def counted(self: planner_module.PreemptionPlanner, record: Any, seq: int) -> None:
            applied.append(seq)
            apply(self, record, seq)

        monkeypatch.setattr(planner_module.PreemptionPlanner, "apply", counted)
        async with running(preemption()):
            urgent = job("urgent", 4, team="blue", priority=5, preempts=True)
            await world.put(urgent)
            (plan,) = await until(world.plans)
    assert plan.beneficiary == urgent.job_id
    assert len(plan.victims) == 2, "the state before the restart was forgotten"
    assert min(applied) > saved.position, "the whole ledger was folded in spite of the snapshot"


@pytest.mark.parametrize("version", [planner_module.PreemptionPlanner.version, 2**31])
async def test_a_snapshot_of_another_version_or_a_broken_one_costs_time_only(
    world: Pool, placement: Any, preemption: Any, version: int
) -> None:
    """Both used to end the service at each start."""
    urgent = job("urgent", 4, team="blue", priority=5, preempts=True)
    async with running(placement()):
        await full_pool(world)
        store = SnapshotStore(world.js, world.name)
        await store.save("preemption", version, GENESIS, 0, [b"not what this version reads"])
        async with running(preemption()):
            await world.put(urgent)
            (plan,) = await until(world.plans)
    assert plan.beneficiary == urgent.job_id
    assert len(plan.victims) == 2


async def snapshot_of(world: Pool) -> Any:
    planner = planner_module.PreemptionPlanner
    return await SnapshotStore(world.js, world.name).load("preemption", planner.version, planner.load)


async def _at_least(world: Pool, number: int) -> list[inbox.PreemptionPlanned] | None:
    plans = await world.plans()
    return plans if len(plans) >= number else None
