"""What the teams and operators of a scenario send, and when: each message until it is stored."""

import asyncio

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from libs.bus.connect import connect
from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import NotStored, Outbox, is_full
from libs.simulation.dst.scenario import POOL, SECRETS, TEAMS, Asked, Scenario
from libs.simulation.dst.telling import tell_secrets
from libs.simulation.dst.world import World
from schemas import subjects
from schemas.catalog import TYPE_OF
from schemas.requests import CancelJob, SubmitJob


async def teams(world: World, scenario: Scenario) -> None:
    """Sends all requests, each until it is stored. Runs in a process of its own."""
    client = await connect("sim://broker", name="teams", wait_s=300)
    outbox = Outbox(client.jetstream(), give_up_s=5)
    asks = [(job.at, job, "submit") for job in scenario.jobs]
    asks += [(job.cancel_at, job, "cancel") for job in scenario.jobs if job.cancel_at is not None]
    asks += [(job.twin_at, job, "twin") for job in scenario.jobs if job.twin_at is not None]
    async with asyncio.TaskGroup() as group:
        for at, job, what in sorted(asks, key=lambda ask: ask[0]):
            group.create_task(_ask(world, outbox, at, job, what))
        for at, tree in scenario.trees:
            subject, cause = subjects.apply_queues(POOL, "op"), f"queues:{tree.version}"
            said = outgoing(tree, subject=subject, type=TYPE_OF[type(tree)], source="/sim", cause=cause)
            group.create_task(_apply(world, outbox, [(at, said)], "queues were applied"))
        if scenario.budgets:
            subject = subjects.apply_budgets(POOL, "op")
            said_at = [
                (
                    at,
                    outgoing(
                        m, subject=subject, type=TYPE_OF[type(m)], source="/sim", cause=f"budgets:{m.budgets.version}"
                    ),
                )
                for at, m in scenario.budgets
            ]
            group.create_task(_apply(world, outbox, said_at, "budgets were applied"))
        for number, story in enumerate(scenario.stories):
            words = [
                (
                    word.at,
                    outgoing(
                        word.message,
                        subject=word.subject,
                        type=TYPE_OF[type(word.message)],
                        source="/sim",
                        cause=f"story:{number}:{place}",
                    ),
                )
                for place, word in enumerate(story.words)
            ]
            group.create_task(_apply(world, outbox, words, story.told))
        if scenario.vaults:
            for team in TEAMS:
                group.create_task(tell_secrets(world, client, team, [name for name, told in SECRETS.items() if told]))


async def _ask(world: World, outbox: Outbox, at: float, job: Asked, what: str) -> None:
    await asyncio.sleep(max(0.0, at - world.loop.now))
    if what == "cancel":
        await job.done.wait()
    message = _cancel(job) if what == "cancel" else _submit(job, what == "twin")
    await _store(world, outbox, message)
    match what:
        case "cancel":
            job.cancelled = True
        case "twin":
            world.sometimes("a key was sent with two bodies")
        case _:
            job.done.set()


async def _apply(world: World, outbox: Outbox, said: list[tuple[float, Outgoing]], told: str) -> None:
    """What an operator says, one after the other. A version that comes too late is refused."""
    for at, message in said:
        await asyncio.sleep(max(0.0, at - world.loop.now))
        await _store(world, outbox, message)
        world.sometimes(told)


async def _store(world: World, outbox: Outbox, message: Outgoing) -> None:
    """Sends it until it is stored; that there is no room for it is the only refusal."""
    while True:
        try:
            await outbox.publish(message)
            return
        except APIError as error:
            if not is_full(error):
                world.violated("refused", f"{message.subject}: {error}")
            await asyncio.sleep(0.5)
        except (NotStored, NatsError, OSError):
            await asyncio.sleep(0.5)


def _submit(job: Asked, twin: bool = False) -> Outgoing:
    spec = job.spec.model_copy(update={"name": f"{job.spec.name}-twin"}) if twin else job.spec
    return outgoing(
        SubmitJob(client_key=job.key, job=spec),
        subject=subjects.submit(job.team, "u"),
        type="io.baton.job.submit.v1",
        source="/sim",
        cause=f"{job.team}/{job.key}{'#2' if twin else ''}",
    )


def _cancel(job: Asked) -> Outgoing:
    return outgoing(
        CancelJob(job_id=job.id, reason="sim"),
        subject=subjects.cancel(job.team, "u"),
        type="io.baton.job.cancel.v1",
        source="/sim",
        cause=f"cancel/{job.team}/{job.key}",
    )
