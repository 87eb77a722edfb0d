"""What operators say to a pool while jobs run: boosts, teams that pause, quotas, prices, more for a budget.

Each word is drawn before the seed begins. Words about one thing follow each other; all others may overtake each other on their
way. When all faults are over an operator looks once more, and nothing holds a team's jobs back for ever.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from schemas import subjects
from schemas.billing import SetQuota
from schemas.ids import job_id
from schemas.inbox import ApplyPrices, BoostJob, OffboardTeam, ResumeTeam, SuspendTeam, TopUpBudget
from schemas.prices import ListRate, RateBook

LAST_S = 26.0
"""When everything works again, an operator looks once more."""


@dataclass(frozen=True, slots=True)
class OperatorWord:
    """`message` goes to `subject` at `at` s."""

    at: float
    subject: str
    message: Any


@dataclass(frozen=True, slots=True)
class OperatorStory:
    """Words that follow each other; `told` is the state that is reached with each of them."""

    told: str
    words: tuple[OperatorWord, ...]


def draw_stories(
    chance: random.Random, pool: str, jobs: Sequence[tuple[str, str, float]], teams: Sequence[str], devices: int
) -> list[OperatorStory]:
    """Some of everything. `jobs`: team, client key, and when each is asked for, s; `devices`: of the pool."""
    stories = list(_boosts(chance, pool, jobs))
    stories += [draw_pause(chance, pool, team) for team in teams if chance.random() < 0.5]
    stories += [_quota(chance, pool, team, devices) for team in teams if chance.random() < 0.4]
    if chance.random() < 0.6:
        stories += [_prices(chance, pool, version) for version in (1, 2)]
    return stories


def top_ups(chance: random.Random, pool: str, keys: Sequence[str], second: int) -> list[OperatorStory]:
    """More for some of these budgets; `second`: what a device-second is in their unit."""
    return [
        OperatorStory(
            "a budget was topped up",
            (
                OperatorWord(
                    chance.uniform(4.0, 16.0),
                    subjects.top_up_budget(pool, "op"),
                    TopUpBudget(budget=key, amount=chance.choice((1, 10, 40)) * second, reason="sim", user="op"),
                ),
            ),
        )
        for key in keys
        if chance.random() < 0.5
    ]


def _boosts(chance: random.Random, pool: str, jobs: Sequence[tuple[str, str, float]]) -> Iterator[OperatorStory]:
    subject = subjects.boost_job(pool, "op")
    for team, key, asked in jobs:
        if chance.random() < 0.4:
            at, name = asked + chance.uniform(0.0, 3.0), job_id(team, key)
            for_s, priority = chance.choice((1.0, 4.0, 60.0)), chance.choice((150, 250, 400))
            words = [
                OperatorWord(
                    at, subject, BoostJob(job_id=name, priority=priority, for_s=for_s, reason="sim", user="op")
                )
            ]
            if chance.random() < 0.3:
                over = BoostJob(job_id=name, priority=0, for_s=0, reason="over", user="op")
                words.append(OperatorWord(at + chance.uniform(0.0, 4.0), subject, over))
            yield OperatorStory("a job was boosted", tuple(words))


def draw_pause(chance: random.Random, pool: str, team: str, *, again: float = 0.3) -> OperatorStory:
    """A team is suspended, so often again with another word, and goes on."""
    subject, at = subjects.suspend_team(pool, "op"), chance.uniform(1.0, 14.0)
    words = [OperatorWord(at, subject, SuspendTeam(team=team, reason="sim", stop=chance.random() < 0.5, user="op"))]
    if chance.random() < again:
        more = SuspendTeam(team=team, reason="and more", stop=chance.random() < 0.5, user="op")
        words.append(OperatorWord(at + chance.uniform(0.0, 2.0), subject, more))
    goes_on = ResumeTeam(team=team, reason="sim", user="op")
    words += [
        OperatorWord(when, subjects.resume_team(pool, "op"), goes_on)
        for when in (at + chance.uniform(0.5, 6.0), LAST_S)
    ]
    return OperatorStory("a team was suspended", tuple(words))


def draw_leave(chance: random.Random, pool: str, team: str) -> OperatorStory:
    """A team is suspended, and has left as soon as it has no jobs; it is back in the end."""
    at = chance.uniform(4.0, 9.0)
    words = [OperatorWord(at, subjects.suspend_team(pool, "op"), SuspendTeam(team=team, reason="sim", user="op"))]
    words += [
        OperatorWord(when, subjects.offboard_team(pool, "op"), OffboardTeam(team=team, reason="sim", user="op"))
        for when in sorted(at + chance.uniform(0.1, 12.0) for _ in range(6))
    ]
    back = ResumeTeam(team=team, reason="sim", user="op")
    words.append(OperatorWord(LAST_S, subjects.resume_team(pool, "op"), back))
    return OperatorStory("a team was suspended", tuple(words))


def _quota(chance: random.Random, pool: str, team: str, devices: int) -> OperatorStory:
    """A quota for a while, perhaps another one then, and none in the end."""
    subject, at = subjects.set_quota(pool, "op"), chance.uniform(0.5, 12.0)
    limits = [1000 * chance.choice((0, 1, 2, devices // 2)) for _ in range(chance.choice((1, 2)))]
    said = [(at + 3 * number, limit) for number, limit in enumerate(limits)]
    words = [
        OperatorWord(when, subject, SetQuota(team=team, limit_milli=limit)) for when, limit in (*said, (LAST_S, None))
    ]
    return OperatorStory("a quota was set", tuple(words))


def quota_gone(pool: str, team: str, at: float, until: float) -> OperatorStory:
    """A quota of nothing for a while."""
    subject = subjects.set_quota(pool, "op")
    words = [
        OperatorWord(when, subject, SetQuota(team=team, limit_milli=limit)) for when, limit in ((at, 0), (until, None))
    ]
    return OperatorStory("a quota was set", tuple(words))


def _prices(chance: random.Random, pool: str, version: int) -> OperatorStory:
    rate = ListRate(device="V100", micros=chance.choice((0, 2_000_000, 3_600_000_001)), from_us=0)
    said = ApplyPrices(book=RateBook(version=version, currency="USD", prices=(rate,)), reason="sim", user="op")
    return OperatorStory(
        "prices were applied", (OperatorWord(chance.uniform(0.5, 14.0), subjects.apply_prices(pool, "op"), said),)
    )
