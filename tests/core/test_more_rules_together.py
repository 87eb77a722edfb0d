"""Random lives in which what operators say meets what nodes and teams do: quotas, budgets, prices, nodes out of use, devices in
quarantine, nodes that fall silent and are lost, teams that are suspended and leave, requests and reports that come again.
Beside what `test_rules_together` asks of them: no job begins once more after its cancel, what is spent of budgets is what the
checker counts, rows of the present say what the state says, a job that is told to be the next is, and once everything is put
right again all that can run has run.

    python -m tests.core.test_more_rules_together 1000 500    500 further seeds
"""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain, queue_view
from libs.core.placement.answer import BlockReason
from libs.core.projections.hot_state import HotState
from libs.core.projections.verify.spending import Spending
from libs.core.state.job import Job
from schemas import inbox
from schemas.attempts import Category
from schemas.budgets import BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget, WhenSpent
from schemas.jobs import Checkpoint, JobState
from schemas.prices import ContractRate, CreditCause, ListRate, RateBook, RateTier
from schemas.resources import Resources, Role, Spread
from schemas.subjects import OPERATOR
from tests.core.builders import GIB
from tests.core.test_rules_together import TEAMS, Life, S

STEPS = 120
SEEDS = (*range(10), 12, 94, 137, 141, 8162)
"""Of the last each meets a fault that was mended."""
HOUR = 1_000_000
_NEVER_THERE = (BlockReason.PROFILE, BlockReason.NO_DEVICES, BlockReason.TOPOLOGY)
"""Why a job waits in an idle pool: it is too large, or its instances are not cut."""


class WiderLife(Life):
    def __init__(self, seed: int) -> None:
        self.cancelled: set[str] = set()
        self.sent: list[inbox.JobAdmitted] = []
        self.books = 0
        super().__init__(seed)

    def live(self, steps: int) -> None:
        does: dict[Callable[[], None], int] = {
            self._submit: 12, self._time_passes: 12, self._start: 9, self._end: 9, self._give_way: 10, self._cut: 5,
            self._cancel: 5, self._boost: 2, self._apply_queues: 1, self._set_clock: 2, self._node: 2, self._restart: 2,
            self._suspend: 3, self._leave: 2, self._ask: 3, self._explain: 5, self._quota: 2, self._budgets: 2, self._top_up: 1,
            self._prices: 1, self._cordon: 3, self._quarantine: 4, self._silence: 5, self._dead: 1, self._checkpoint: 4,
            self._send_again: 3, self._late_report: 3, self._refuse: 3, self._end_oddly: 3,
        }  # fmt: skip
        for does_it in self.chance.choices(list(does), list(does.values()), k=steps):
            does_it()
        self.world.check()
        self._spent_as_checked()
        self._rows_as_the_state()
        self._put_right()

    def _send(self, *messages: Any, after_us: int = 1000) -> list[Any]:
        events = super()._send(*messages, after_us=after_us)
        for event in events:
            assert event.kind != "job.granted" or event.job_id not in self.cancelled, "it begins once more"
        fleet = self.state.fleet
        away = [one for held in self.state.holds.values() for one in held if not fleet.up[fleet.row(one)]]
        assert not away, "it is held for a job, and is in placement no more"
        return events

    def _new(self, team: str, priority: int, preempts: bool, **said: Any) -> inbox.JobAdmitted:
        new = super()._new(team, priority, preempts, **said)
        lease_s, user = self.chance.choice((0, 10, 330, 330)), self.chance.choice(("", "ana", "bob"))
        self.sent.append(new := new.model_copy(update={"lease_s": lease_s, "user": user}))
        return new

    def _asks(self) -> Resources:
        if self.chance.random() > 0.25:
            return super()._asks()
        roles = (Role(name="a", devices=self.chance.choice((1, 2))), Role(name="b", count=2, min_count=1))
        return self.chance.choice(
            (
                Resources(devices=1, spread=Spread(key="k")),
                Resources(devices=sum(role.count * role.devices for role in roles), roles=roles),
                Resources(devices=1, host_memory_mib=self.chance.choice((8, 32)) * GIB, cpu_milli=4000),
                Resources(devices=1, memory_mib=40 * GIB, share_milli=400),
            )
        )

    def _cancel(self) -> None:
        for one in self._some(list(self.state.jobs.values())):
            asked = inbox.CancelRequested(job_id=one.id, team=one.team, reason="no", requested_us=self.world.wall_us)
            self._send(asked)
            self.cancelled.add(one.id)

    # ------------------------------------------------------------------------------------------------- operators' words

    def _quota(self) -> None:
        limit = self.chance.choice((None, None, 0, 1500, 4000))
        by_type = self.chance.choice(({}, {"H100": 2000}, {"H100:1g.10gb": 2000}))
        self._send(inbox.QuotaChanged(team=self.chance.choice(TEAMS), limit_milli=limit, by_type=by_type))

    def _budgets(self) -> None:
        chance, now, found = self.chance, self.state.budgets.applied, dict[str, SpendingBudget]()
        for _ in range(chance.randint(0, 3)):
            queues = list(self.state.tree.queues)
            whose = (
                {"queue": chance.choice(queues)} if queues and chance.random() < 0.3 else {"team": chance.choice(TEAMS)}
            )
            budget = SpendingBudget(
                **whose, unit=chance.choice(list(BudgetUnit)), period=chance.choice(list(BudgetPeriod)),
                soft=chance.choice((None, HOUR // 20)), hard=chance.choice((HOUR // 10, HOUR, 20 * HOUR, 500 * HOUR)),
                carry_over=chance.choice((0, HOUR)), when_spent=chance.choice(list(WhenSpent)),
            )  # fmt: skip
            found[budget.key] = budget
        version, renewal_s = now.version + 1 if now else 1, chance.choice((60, 900))
        budgets = BudgetSet(version=version, renewal_s=renewal_s, budgets=tuple(found.values()))
        self._send(inbox.ApplyBudgets(budgets=budgets, user="olga"))

    def _top_up(self) -> None:
        for key in self.chance.sample(keys := list(self.state.budgets.balances), min(1, len(keys))):
            self._send(inbox.TopUpBudget(budget=key, amount=HOUR // 10, reason="more", user="olga"))

    def _prices(self) -> None:
        chance, self.books = self.chance, self.books + 1
        cut_us = max(1, self.world.wall_us + chance.choice((0, 1, -1800, 3600, -90_000)) * S)
        spans = ((0, cut_us), (cut_us, None))
        prices = tuple(
            ListRate(device=kind, micros=chance.choice((0, 1, 333_333, 3_000_000)), from_us=since_us, to_us=until_us)
            for kind in ("H100", *chance.sample(("H100:1g.10gb", "H100:3g.40gb"), chance.randint(0, 2)))
            for since_us, until_us in spans
        )
        tiers = (RateTier(above_hours=0, micros=5), RateTier(above_hours=1, micros=2))
        contract = ContractRate(team=chance.choice(TEAMS), contract="k", device="H100", tiers=tiers, from_us=0)
        book = RateBook(
            version=self.books, currency="USD", prices=prices, contracts=(contract,) if chance.random() < 0.5 else (),
            credits={cause: chance.choice((1, 333, 1000)) for cause in chance.sample(list(CreditCause), 2)},
        )  # fmt: skip
        self._send(inbox.ApplyPrices(book=book, user="olga"))

    def _cordon(self) -> None:
        name = self.chance.choice(list(self.state.fleet.nodes))
        out = name in self.state.cordoned
        self._send(
            inbox.UncordonNode(node=name, user="olga")
            if out
            else inbox.CordonNode(node=name, reason="a fan", user="olga")
        )

    def _dead(self) -> None:
        for name in list(self.state.silent)[:1]:
            self._send(inbox.NodeDead(node=name, fenced_by="its plug", user="olga"))

    def _leave(self) -> None:
        self._send(inbox.OffboardTeam(team=self.chance.choice(TEAMS), reason="its contract has ended", user="olga"))

    # ---------------------------------------------------------------------------------------------- nodes, and what comes late

    def _quarantine(self) -> None:
        chance, (name, known) = self.chance, self.chance.choice(list(self.state.fleet.nodes.items()))
        if self.state.quarantined and chance.random() < 0.3:
            device, busy = chance.choice(list(self.state.quarantined.items()))
            since_us = chance.choice((0, busy.since_us))
            self._send(
                inbox.QuarantineLifted(node=busy.node, device=device, since_us=since_us, reason="ours", user="olga")
            )
            return
        offered = [self.state.fleet.devices.names[row] for row in known.rows]
        some = chance.sample(offered, min(len(offered), chance.choice((0, 0, 1, 2))))
        told = tuple(inbox.BusyDevice(device=one, users="p 1", since_us=chance.choice((5, 6))) for one in some)
        self._send(inbox.NodeQuarantine(node=name, incarnation=known.incarnation, devices=told))

    def _silence(self) -> None:
        name, known = self.chance.choice(list(self.state.fleet.nodes.items()))
        told: dict[str, Any] = {"node": name, "incarnation": known.incarnation}
        if not known.up:
            return
        if (silence := self.state.silent.get(name)) is None:
            self._send(inbox.NodeSilent(**told, silent_s=15))
        elif (draw := self.chance.random()) < 0.4:
            self._send(inbox.NodeHeardAgain(**told))
        elif draw < 0.7:
            silent_s, ended_s = self.chance.choice(((40, 10), (400, 330)))
            ended = inbox.NodeSilent(**told, silent_s=silent_s, ended_lease_s=ended_s, since_us=silence.since_us)
            self._send(ended)
        else:
            self._send(inbox.NodeLost(**told, silent_s=500, since_us=silence.since_us))

    def _open(self) -> list[tuple[Job, str]]:
        """Jobs that hold devices, with a node of each that has not freed them."""
        return [
            (one, self.chance.choice([name for name, part in one.current.parts.items() if not part.freed]))
            for one in self._some(self._those_that(lambda it: it.current is not None))
            if one.current is not None
        ]

    def _checkpoint(self) -> None:
        for one, _ in self._open():
            node = self.world.nodes_of(one.id)[0]
            saved = Checkpoint(step=self.chance.randint(1, 1000), reference="s3://x/1")
            self.world.observe(node, inbox.CheckpointTaken(job_id=one.id, attempt=one.attempts, checkpoint=saved))

    def _refuse(self) -> None:
        for one, node in self._open():
            if one.state is JobState.GRANTED:
                why = self.chance.choice((None, Category.HARDWARE))
                self.world.observe(
                    node, inbox.Refused(job_id=one.id, attempt=one.attempts, reason="busy", category=why)
                )

    def _end_oddly(self) -> None:
        chance = self.chance
        for one, node in self._open():
            told = inbox.Released(
                job_id=one.id, attempt=one.attempts, exit_code=chance.choice((0, 1, 137, 143)), own_exit=chance.random() < 0.5,
                reason="so", port_held=chance.random() < 0.3, over_limit=chance.random() < 0.3,
                unproven=chance.random() < 0.3, category=chance.choice((None, Category.OUT_OF_MEMORY, Category.HARDWARE)),
            )  # fmt: skip
            self.world.observe(node, told)

    def _send_again(self) -> None:
        if self.sent:
            again = self.chance.choice(self.sent)
            other = self.chance.random() < 0.3
            self._send(again.model_copy(update={"spec_hash": "of another body"}) if other else again)

    def _late_report(self) -> None:
        up = [name for name, node in self.state.fleet.nodes.items() if node.up]
        for one in self._some(self._those_that(lambda it: it.attempts > 0)) if up else ():
            attempt = max(1, one.attempts - self.chance.choice((0, 1)))
            released = inbox.Released(job_id=one.id, attempt=attempt, exit_code=0, own_exit=True)
            self.world.observe(self.chance.choice(up), released, inbox.Started(job_id=one.id, attempt=attempt))

    # ------------------------------------------------------------------------------------------------------ what must hold

    def _explain(self) -> None:
        """Who is told to be granted with the next decision is, within a second, or somebody before it; and what is held is
        granted once all have given way."""

        def are_next() -> set[str]:
            reasons = Reasons(self.state, self.world.decider.policy)
            queue_view(self.state, reasons, 50)
            seen_by = self.chance.choice((OPERATOR, ""))
            jobs = self.state.jobs.values()
            return {
                one.id
                for one in jobs
                if explain(self.state, one, reasons, seen_by=seen_by or one.team).reason == "next"
            }

        self._send(inbox.Tick())
        told = are_next()
        granted = [event for event in self._send(inbox.Tick(), after_us=S) if event.kind == "job.granted"]
        assert not told or granted or not self.world.decider.plan.complete
        still = {one.current.beneficiary for one in self.state.jobs.values() if one.current is not None}
        assert self.state.holds.keys() <= still, "nobody gives way any more, and what is held is not granted"

    def _spent_as_checked(self) -> None:
        ends = self.world.checker._end
        books = next(end.__self__ for end in ends if isinstance(getattr(end, "__self__", None), Spending))  # type: ignore[attr-defined]
        for key, balance in self.state.budgets.balances.items():
            row = books._rows[key]
            running = sum(
                one.per_us(row.about.unit) * (self.world.now_us - one.since_us) for one in books._running_in(row)
            )
            assert (row.allowed, row.spent + running) == (balance.allowed, balance.spent(self.world.now_us))
            assert books._available(row) == self.state.budgets.available(balance, self.world.now_us)

    def _rows_as_the_state(self) -> None:
        rows, state = HotState(), self.state
        for seq, record in enumerate(self.world.records, 1):
            rows.apply(record, seq)
        for name, node in state.fleet.nodes.items():
            row = rows.nodes[name]
            assert row["status"] == ("lost" if not node.up else "silent" if name in state.silent else "up")
            assert bool(row["out_of_use"]) is (name in state.cordoned)
            for device in row["devices"]:
                busy = state.quarantined.get(device)
                assert bool(rows.devices[device]["quarantine"]) is (busy is not None and not busy.lifted)
                free = state.fleet.free_milli[state.fleet.row(device)]
                assert rows.devices[device]["milli_used"] == 1000 - free
        told = {job_id: (row["state"], row["priority"]) for job_id, row in rows.jobs.items()}
        assert told == {one.id: (one.state.value, one.priority) for one in state.jobs.values()}
        for team in TEAMS:
            assert rows.teams.get(team, {"used": {}})["used"] == state.used.get(team, {})

    def _put_right(self) -> None:
        """No limit, suspension, cordon or quarantine is left; every job ends by itself at once. What waits then cannot run
        here: it is too large, or needs instances that no board has."""
        for team in TEAMS:
            if team in self.state.suspended:
                self._send(inbox.ResumeTeam(team=team, reason="paid", user="olga"))
            self._send(inbox.QuotaChanged(team=team, limit_milli=None))
        if (now := self.state.budgets.applied) is not None:
            self._send(inbox.ApplyBudgets(budgets=BudgetSet(version=now.version + 1), user="olga"))
        for name in list(self.state.cordoned):
            self._send(inbox.UncordonNode(node=name, user="olga"))
        for name, node in list(self.state.fleet.nodes.items()):
            if name in self.state.silent:
                self._send(inbox.NodeHeardAgain(node=name, incarnation=node.incarnation))
            elif not node.up:
                again = inbox.NodeRegistered(incarnation=node.incarnation + 1, inventory=node.inventory, lease_s=10)
                self._send(again)
            incarnation = self.state.fleet.nodes[name].incarnation
            self._send(inbox.NodeQuarantine(node=name, incarnation=incarnation, devices=()))
        self._send(inbox.ApplyQueues(version=self.state.tree.version + 1, queues=(), user="olga"))
        quiet = 0
        while self.state.jobs and quiet < 30:
            granted = any(event.kind == "job.granted" for event in self._send(inbox.Tick(), after_us=30 * S))
            quiet = 0 if granted or self.state.repartitions else quiet + 1
            self._cut()
            self._start()
            for one in self._those_that(lambda it: it.current is not None):
                assert one.current is not None
                own = one.state is JobState.RUNNING
                nodes = [name for name, part in one.current.parts.items() if not part.freed]
                self.world.released(one.id, exit_code=0 if own else 143, own_exit=own, nodes=nodes)
        reasons = Reasons(self.state, self.world.decider.policy)
        left = {explain(self.state, one, reasons).reason for one in self.state.jobs.values()}
        assert left <= {reason.value for reason in _NEVER_THERE}
        self.world.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_rules_that_meet_what_operators_say_agree(seed: int) -> None:
    WiderLife(seed).live(STEPS)


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    for number in range(first, first + count):
        try:
            WiderLife(number).live(STEPS)
        except Exception as error:
            print(f"seed {number}: {type(error).__name__} {error}")
