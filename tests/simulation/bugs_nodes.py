"""Bugs of leases and agents."""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from libs.core.projections import node_health
from libs.core.projections.granter import Granter
from libs.simulation.dst import agents as sim_agents
from libs.simulation.dst.agents import SimPart, SimState
from libs.simulation.dst.machine import Machine
from schemas import inbox
from services.agent import node as agent_node
from services.agent import reconcile
from services.agent.lease import Lease
from services.agent.reports import Reports
from services.agent.wanted import Wanted
from services.leases.grants import Grants
from tests.simulation.bug import bug, set_on


@bug("a node is given up after half of its lease", "leases", "nodes", findings=(4,))
def lost_too_early(stack: ExitStack) -> None:
    set_on(stack, node_health.Terms, "patience", lambda self, lease_s: lease_s * 0.5)


@bug("a successor does not wait out the leases that its predecessor granted", "leases", findings=(4, 17))
def successor_does_not_wait(stack: ExitStack) -> None:
    def named(self: Granter, right: Any, now: float) -> None:
        self.right = right

    set_on(stack, Granter, "named", named)


@bug(
    "while the ledger may name no granter, one that is deaf reports all nodes lost",
    aim="deaf beside an older reader",
    findings=(4, 17),
)
def deaf_granter_reports(stack: ExitStack) -> None:
    real = Grants.reports

    def reports(self: Grants, at: float) -> Any:
        with patch.object(Grants, "may_grant", lambda *_: True):
            yield from real(self, at)

    set_on(stack, Grants, "reports", reports)


@bug(
    "whom the keeper kills at the end of its lease seems to have ended by itself, when a renewal comes at that moment",
    aim="heard of at once",
    findings=(4,),
)
def killed_at_its_end_ends_by_itself(stack: ExitStack) -> None:
    real = SimPart._ended

    def renewed(self: agent_node.NodeRunner, sent: float) -> bool:
        return self.lease.renew(sent, self.now())

    def ended(self: SimPart, exit_code: int) -> None:
        assert self._process is not None
        self._process.doomed = False
        real(self, exit_code)

    set_on(stack, agent_node.NodeRunner, "renewed", renewed)
    set_on(stack, SimPart, "_ended", ended)


@bug("a granter that was started anew does not wait out the leases that it cannot know of", "leases", findings=(4,))
def telemetry_forgets_its_start(stack: ExitStack) -> None:
    real = node_health.overdue

    def overdue(now: float, last_seen: Any, up: Any, started_at: float, terms: Any) -> Any:
        return real(now, last_seen, {n: (i, 0.0) for n, (i, _) in up.items()}, 0.0, terms)

    set_on(stack, node_health, "overdue", overdue)


@bug("a lease counts from when its renewal was received", findings=(4,))
def lease_from_receipt(stack: ExitStack) -> None:
    real = Lease.renew
    set_on(stack, Lease, "renew", lambda self, sent, now: real(self, now + 2.0, now))


@bug(
    "a lease that has ended revives",
    harmless="the keeper ends the work all the same, and says that it did",
    findings=(4,),
)
def lease_revives(stack: ExitStack) -> None:
    def check(self: Lease, now: float) -> bool:
        return False

    set_on(stack, Lease, "check", check)


@bug("work is started without a lease", findings=(4,))
def start_without_lease(stack: ExitStack) -> None:
    real = agent_node.plan
    set_on(stack, agent_node, "plan", lambda desired, view, lease_valid=True, lease_left=None: real(desired, view))
    set_on(stack, Lease, "valid", lambda self, now: True)
    set_on(stack, Lease, "check", lambda self, now: False)


@bug("nobody but the agent ends work when the lease ends", "nodes", findings=(16,))
def no_keeper(stack: ExitStack) -> None:
    set_on(stack, Machine, "_look", lambda self, life, early_s: None)


@bug("a new life of a node has the number of the last one", findings=(7,))
def incarnation_not_raised(stack: ExitStack) -> None:
    def next_incarnations(self: SimState, nodes: Any, above: Any = None) -> dict[str, int]:
        self._machine.incarnation = max(1, self._machine.incarnation)
        return dict.fromkeys(nodes, self._machine.incarnation)

    set_on(stack, SimState, "next_incarnations", next_incarnations)


@bug("a node's new life does not go above the one that the pool knows", "nodes", findings=(7,))
def incarnation_not_above(stack: ExitStack) -> None:
    real = SimState.next_incarnations
    set_on(stack, SimState, "next_incarnations", lambda self, nodes, above=None: real(self, nodes))


@bug(
    "an older desired state is followed as well as a newer one",
    harmless="its grants have older epochs (the row below takes both away)",
)
def stale_desired_followed(stack: ExitStack) -> None:
    def concerns(desired: Any, view: Any) -> bool:
        return bool(desired.node == view.node)

    def take_change(self: Wanted, change: Any) -> bool:
        self.seq = change.ledger_seq - 1
        return real(self, change.model_copy(update={"since": self.seq}))

    real = Wanted.take_change
    set_on(stack, agent_node, "concerns", concerns)
    set_on(stack, reconcile, "concerns", concerns)
    set_on(stack, Wanted, "take_change", take_change)


@bug("an older desired state is followed, and epochs are not compared", aim="late words to agents")
def stale_desired_and_epochs(stack: ExitStack) -> None:
    stale_desired_followed(stack)
    real = reconcile._refusal

    def refusal(part: Any, view: Any, occupied: Any) -> Any:
        return real(part, replace(view, epochs={}), occupied)

    set_on(stack, reconcile, "_refusal", refusal)


@bug("a release is told before the processes are gone", findings=(8,))
def released_too_early(stack: ExitStack) -> None:
    real = SimPart.stop

    def stop(self: SimPart) -> None:
        report, over = self._report, self._over
        real(self)
        if not over and self._process.alive:
            report(
                inbox.Released(
                    job_id=self._part.job_id, attempt=self._part.attempt, exit_code=143, reason="", own_exit=False
                )
            )

    set_on(stack, SimPart, "stop", stop)
    set_on(stack, SimPart, "save", stop)
    set_on(stack, sim_agents, "STOP_S", 3.0)


@bug(
    "the next agent's reports look like repeats of the one's before it",
    harmless="what matters is repeated until it is heard (see below)",
    findings=(12,),
)
def report_ids_repeat(stack: ExitStack) -> None:
    real = Reports.__init__

    def init(self: Reports, *args: Any, **named: Any) -> None:
        real(self, *args, **named)
        self._run = ""

    set_on(stack, Reports, "__init__", init)


@bug(
    "the next agent's reports look like repeats, and nothing is repeated until the ledger shows it",
    "nodes",
    findings=(12,),
)
def report_ids_repeat_and_no_repeats(stack: ExitStack) -> None:
    report_ids_repeat(stack)
    set_on(stack, agent_node.NodeRunner, "repeat", lambda self, older_than_s: None)


@bug("an agent that comes back ends what it finds running", "nodes", findings=(16,))
def restart_ends_work(stack: ExitStack) -> None:
    real = sim_agents._built
    set_on(
        stack,
        sim_agents,
        "_built",
        lambda settings, nats, machine, found, before: real(settings, nats, machine, found, False),
    )


@bug("a report that was not stored at once is dropped", "again", "nodes", "room", findings=(12,))
def report_dropped(stack: ExitStack) -> None:
    async def store(self: Reports, batch: Any) -> None:
        try:
            async with asyncio.timeout(0.5):
                await self._publish(batch)
        except Exception:
            return

    set_on(stack, Reports, "_store", store)
    set_on(stack, agent_node.NodeRunner, "repeat", lambda self, older_than_s: None)
