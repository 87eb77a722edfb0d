"""Random lives under budgets: no grant is beyond what is available, overspending is bounded, whoever crashes, and amounts are
those of an oracle that adds up microseconds of attempts."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from libs.core.accelerators.kinds import counted_milli
from libs.core.billing.budgets import period_of
from libs.core.scheduling.decider import Decider
from libs.core.state.lifecycle import UNDECIDED
from schemas import inbox
from schemas.budgets import BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget, WhenSpent
from schemas.ledger import (
    BudgetHoldsRenewed,
    BudgetsApplied,
    BudgetToppedUp,
    DevicesFreed,
    JobGranted,
    JobQueued,
    LedgerRecord,
)
from schemas.prices import ListRate, RateBook
from schemas.queues import Queue
from tests.core.builders import World, job, node

SEEDS = range(12)
STEPS = 50
S = 1_000_000
HOUR_US = 3600 * S
TICK_US = 20 * S
RENEWAL_S = 60
GRACE_US = 30 * S
"""Within which, in these lives, a stopped attempt is gone: its grace and the kill bound."""
AWAY_US = 60 * S
TEAMS = ("red", "blue", "green")
TREE = (Queue(name="lab"), Queue(name="red", parent="lab"), Queue(name="blue", parent="lab"))


@dataclass
class Life:
    """A pool whose agents do as they are told, within `GRACE_US`."""

    chance: Random
    world: World = field(default_factory=lambda: World(node("n0"), node("n1", 4, model="A100")))
    jobs: int = 0
    stopped_us: dict[str, int] = field(default_factory=dict)

    over: dict[tuple[int, str, int], int] = field(default_factory=dict)
    """What was spent beyond a limit when it was looked at first, by version, budget and period."""
    fastest: dict[str, int] = field(default_factory=dict)
    """Budget -> the highest rate at which it was spent."""

    def state(self) -> Any:
        return self.world.decider.state

    def open(self, *, decided: bool) -> list[str]:
        return [
            j.id for j in self.state().jobs.values()
            if j.current is not None and (j.current.state in UNDECIDED) is not decided
        ]  # fmt: skip

    def send(self, *messages: Any, after_us: int = 1000) -> None:
        self.world.send(*messages, after_us=after_us)
        for job_id in self.open(decided=True):
            self.stopped_us.setdefault(job_id, self.world.now_us)
        self.stopped_us = {j: at for j, at in self.stopped_us.items() if j in self.open(decided=True)}

    def pass_time(self, time_us: int) -> None:
        """Ticks come, and what was stopped goes in time."""
        end_us = self.world.now_us + time_us
        while self.world.now_us < end_us:
            for job_id, at_us in list(self.stopped_us.items()):
                if self.world.now_us + TICK_US >= at_us + GRACE_US:
                    self.world.released(job_id, exit_code=143, own_exit=False)
                    self.stopped_us.pop(job_id)
            self.send(inbox.Tick(), after_us=TICK_US)

    def submit(self) -> None:
        self.jobs += 1
        some = []
        for n in range(self.chance.choice((1, 1, 2))):  # two admissions in one batch
            limit_s = self.chance.choice((0, 0, 90, 600))
            share = self.chance.choice((1000, 1000, 250))
            devices = self.chance.choice((1, 2, 4)) if share == 1000 else 1
            some.append(
                job(
                    f"j{self.jobs}-{n}",
                    devices,
                    team=self.chance.choice(TEAMS),
                    time_limit_s=limit_s,
                    share_milli=share,
                    submitted_us=max(1, self.world.now_us),
                )
            )
        self.send(*some)

    def end(self) -> None:
        if going := self.open(decided=False):
            chosen = self.chance.choice(going)
            self.world.started(chosen)
            self.world.released(chosen)

    def apply(self) -> None:
        hour = 1_000_000
        every = [
            SpendingBudget(
                team=team,
                unit=self.chance.choice(list(BudgetUnit)),
                period=self.chance.choice(list(BudgetPeriod)),
                soft=hour // 20,
                hard=self.chance.choice((hour // 10, hour // 3, hour)),
                carry_over=self.chance.choice((0, hour // 10)),
                when_spent=self.chance.choice(list(WhenSpent)),
            )
            for team in self.chance.sample(TEAMS, 2)
        ]
        lab = SpendingBudget(queue="lab", unit=BudgetUnit.GPU_HOURS, period=BudgetPeriod.DAY, hard=hour // 2)
        now = self.state().budgets.applied
        budgets = BudgetSet(
            version=now.version + 1 if now else 1,
            renewal_s=RENEWAL_S,
            budgets=(*every, lab),
            time_zone="Asia/Kathmandu",
        )
        self.send(inbox.ApplyBudgets(budgets=budgets, user="olga"))

    def top_up(self) -> None:
        if keys := list(self.state().budgets.balances):
            self.send(inbox.TopUpBudget(budget=self.chance.choice(keys), amount=100_000, reason="more", user="olga"))

    def crash(self) -> None:
        """Another process takes over: from the ledger, or from a snapshot."""
        w = self.world
        if self.chance.random() < 0.5:
            w.decider = Decider.load(list(w.decider.dump()))
        else:
            w.decider = Decider()
            for seq, record in enumerate(w.records, 1):
                w.decider.apply(record, seq)

    def away(self) -> None:
        """Nobody decides for a while."""
        self.send(inbox.Tick(), after_us=AWAY_US)

    def lose(self) -> None:
        """A node begins anew: all on it is gone."""
        known = self.state().fleet.nodes["n1"]
        again = inbox.NodeRegistered(
            incarnation=known.incarnation + 1, inventory=node("n1", 4, model="A100"), lease_s=10
        )
        self.send(again)


def lived(seed: int) -> Life:
    life = Life(Random(seed))
    prices = (
        ListRate(device="H100", micros=3_000_000, from_us=0),
        ListRate(device="A100", micros=1_000_001, from_us=0),
    )
    life.send(inbox.ApplyPrices(book=RateBook(version=1, currency="USD", prices=prices)))
    life.send(inbox.ApplyQueues(version=1, queues=TREE))
    life.apply()
    steps = [life.submit] * 6 + [life.end] * 2 + [life.top_up, life.apply, life.crash, life.away, life.lose]
    for _ in range(STEPS):
        life.chance.choice(steps)()
        life.pass_time(life.chance.choice((0, TICK_US, 5 * TICK_US)))
        bounded(life)
    return life


def bounded(life: Life) -> None:
    """Of a budget that stops at its end, no more is spent beyond it than the rate of what runs x (renewal + grace + kill
    bound), and the time for which nobody decided. What was spent beyond a limit before that was lowered is no overspending."""
    now = life.world.now_us
    for key, balance in life.state().budgets.balances.items():
        if balance.allowed is None or balance.about.when_spent is WhenSpent.CONTINUE:
            continue
        version = life.state().budgets.applied.version
        over = max(0, balance.spent(now) - balance.allowed)
        base = life.over.setdefault((version, key, balance.from_us), over)
        life.fastest[key] = max(life.fastest.get(key, 0), balance.rate)
        assert over - base <= life.fastest[key] * (RENEWAL_S * S + TICK_US + GRACE_US + AWAY_US)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_grant_is_beyond_what_is_available_whatever_happens(seed: int):
    life = lived(seed)
    life.world.check()
    assert spent_of(life.world.records) == {
        key: b.spent(life.world.records[-1].t_us) for key, b in life.state().budgets.balances.items()
    }


def spent_of(records: list[LedgerRecord]) -> dict[str, int]:
    """What is spent of each budget in its last period, from grants, freeings and the calendar alone."""
    team: dict[str, str] = {}
    runs: list[dict[str, Any]] = []
    applied: dict[str, tuple[SpendingBudget, int]] = {}
    zone, end_us = "UTC", records[-1].t_us
    for record in records:
        for e in record.events:
            match e:
                case JobQueued():
                    team[e.job_id] = e.team
                case JobGranted():
                    runs.append({
                        "job": e.job_id, "from": record.t_us, "parts": {
                            n: [c for c in e.claims if c.node == n] for n in {c.node for c in e.claims}
                        }, "ends": {}, "terms": [(record.t_us, e.hold)],
                    })  # fmt: skip
                case BudgetHoldsRenewed():
                    for run in runs:
                        if run["job"] in e.jobs and len(run["ends"]) < len(run["parts"]):
                            run["terms"].append((record.t_us, e.hold))
                case DevicesFreed():
                    run = next(r for r in reversed(runs) if r["job"] == e.job_id)
                    run["ends"][e.node] = record.t_us
                case BudgetsApplied():
                    zone = e.budgets.time_zone
                    since = {key: at for key, (_, at) in applied.items()}
                    applied = {b.key: (b, since.get(b.key, record.t_us)) for b in e.budgets.budgets}
                case BudgetToppedUp():
                    pass
    total = {}
    for key, (about, since_us) in sorted(applied.items()):
        start = max(since_us, period_of(about.period, zone, end_us)[0])
        teams = {about.team} if about.team is not None else {"lab", "red", "blue"}
        total[key] = sum(cost(about.unit, run, start, end_us) for run in runs if team[run["job"]] in teams)
    return total


def cost(unit: BudgetUnit, run: dict[str, Any], start_us: int, end_us: int) -> int:
    """Of an attempt from `start_us` on, part by part and term by term."""
    found = 0
    for name, claims in run["parts"].items():
        until = min(end_us, run["ends"].get(name, end_us))
        for n, (since, hold) in enumerate(run["terms"]):
            to = run["terms"][n + 1][0] if n + 1 < len(run["terms"]) else until
            span = min(to, until) - max(since, start_us)
            if span <= 0 or hold is None:
                continue
            model = "A100" if name == "n1" else "H100"
            for claim in claims:
                each = 7 * claim.milli * (counted_milli("*", {model: 1000}) // 1000)
                each = each if unit is BudgetUnit.GPU_HOURS else claim.milli * hold.prices.get(model, 0)
                found += each * span
    return found
