"""Random but valid histories of a pool: what agents, teams and telemetry might say, in any order."""

from typing import Any

from hypothesis import strategies as st

from schemas import inbox
from schemas.jobs import JobState
from tests.core.builders import World, job, node

NODES = ("a", "b", "c")
_verbs = st.sampled_from(
    [
        "submit",
        "submit",
        "submit",
        "start",
        "start",
        "release",
        "release",
        "cancel",
        "fail",
        "checkpoint",
        "lose",
        "join",
        "quota",
        "preempt",
        "refuse",
    ]
)
steps = st.lists(st.tuples(_verbs, st.integers(0, 11), st.integers(1, 6)), max_size=40)
"""A history: (verb, which, how much); `drive` plays it."""


def drive(history: list[Any]) -> World:
    """The world after the history; every record is in `world.records`."""
    world = World(*(node(name, 4) for name in NODES))
    lives = dict.fromkeys(NODES, 1)
    for number, (verb, which, amount) in enumerate(history):
        _play(world, lives, number, verb, which, amount)
    return world


def _play(world: World, lives: dict[str, int], number: int, verb: str, which: int, amount: int) -> None:
    state = world.decider.state
    name = NODES[which % len(NODES)]
    running = sorted(j.id for j in state.jobs.values() if j.current is not None)
    chosen = running[which % len(running)] if running else ""
    if verb == "submit":
        team = ("red", "blue")[which % 2]
        share = 500 if amount == 1 and which > 5 else 1000
        world.submit(job(f"j{number}", 1 if share < 1000 else amount, team=team, priority=which % 3, share_milli=share))
    elif verb == "cancel" and state.jobs:
        target = sorted(state.jobs)[which % len(state.jobs)]
        world.send(inbox.CancelRequested(job_id=target, team=state.jobs[target].team, reason="no longer wanted"))
    elif verb == "lose":
        world.send(inbox.NodeLost(node=name, incarnation=lives[name], silent_s=30))
    elif verb == "join":
        lives[name] += 1
        world.send(inbox.NodeRegistered(incarnation=lives[name], inventory=node(name, 3 + which % 2), lease_s=10))
    elif verb == "quota":
        world.send(
            inbox.QuotaChanged(team=("red", "blue")[which % 2], limit_milli=amount * 2000 if amount < 6 else None)
        )
    elif chosen and verb == "start":
        world.started(chosen)
    elif chosen and verb in ("release", "fail"):
        left = [n for n, part in state.jobs[chosen].current.parts.items() if not part.freed]  # type: ignore[union-attr]
        world.released(chosen, exit_code=int(verb == "fail"), nodes=left[: amount % 3 + 1])
    elif chosen and verb == "checkpoint":
        world.checkpointed(chosen, step=number)
    elif chosen and verb == "refuse":
        attempt = world.attempt(chosen)
        world.observe(world.nodes_of(chosen)[0], inbox.Refused(job_id=chosen, attempt=attempt, reason="stale epoch"))
    elif chosen and verb == "preempt":
        _preempt(world, chosen, number)


def _preempt(world: World, victim: str, number: int) -> None:
    state = world.decider.state
    current = state.jobs[victim].current
    if current is None or state.jobs[victim].state is not JobState.RUNNING:
        return
    urgent = job(f"urgent{number}", len(current.claims), priority=9, preempts=True)
    world.submit(urgent)
    devices = tuple(c.device for c in current.claims)
    world.send(
        inbox.PreemptionPlanned(
            plan_id=f"plan{number}",
            base_seq=0,
            beneficiary=urgent.job_id,
            victims=(victim,),
            devices=devices,
            cost_device_s=1,
        )
    )
