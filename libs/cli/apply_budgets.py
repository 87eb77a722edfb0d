"""`baton apply -f FILE` and `baton diff -f FILE` for a budgets file: all or nothing."""

from libs.cli.budget import standing
from libs.cli.budgetsfile import BudgetsFileError, read_budgets
from libs.cli.exits import UsageFault
from libs.cli.pool_commands import check_version, say_to_pool
from libs.client import Baton
from libs.core.scheduling.queues import Change
from schemas import subjects
from schemas.budgets import BudgetSet, SpendingBudget
from schemas.inbox import ApplyBudgets
from schemas.queue_status import BudgetsReply


async def compared(baton: Baton, text: str, name: str) -> tuple[BudgetsReply, BudgetSet, list[Change]]:
    """Present budgets, the file's, and each change. Raises UsageFault when the file is invalid."""
    reply = await standing(baton)
    try:
        then = read_budgets(text, name, reply.queues)
    except BudgetsFileError as error:
        raise UsageFault(str(error)) from None
    return reply, then, changes(_set(reply), then)


async def apply(baton: Baton, reply: BudgetsReply, then: BudgetSet, reason: str) -> int | None:
    """Returns the ledger record that decided it. Raises Failed when the file's version is not above the present one."""
    who = baton.place.user or "operator"
    check_version(then.version, reply.version)

    async def applied() -> bool:
        return (await standing(baton)).version == then.version

    said = ApplyBudgets(budgets=then, reason=reason, user=who)
    subject = subjects.apply_budgets(baton.place.pool, who)
    return await say_to_pool(baton, baton.place.pool, said, subject, f"budgets:{then.version}", done=applied)


def _set(reply: BudgetsReply) -> BudgetSet | None:
    if not reply.version:
        return None
    return BudgetSet(
        version=reply.version,
        time_zone=reply.time_zone,
        renewal_s=reply.renewal_s,
        budgets=tuple(one.budget for one in reply.budgets),
    )


def changes(before: BudgetSet | None, after: BudgetSet) -> list[Change]:
    """All differences except the version's; empty if there are none."""
    found: list[Change] = []
    if before is not None and before.time_zone != after.time_zone:
        found.append(Change("(the pool)", "time_zone", before.time_zone, after.time_zone))
    if before is not None and before.renewal_s != after.renewal_s:
        found.append(Change("(the pool)", "renewal", f"{before.renewal_s}s", f"{after.renewal_s}s"))
    old = {about.key: about for about in before.budgets} if before is not None else {}
    new = {about.key: about for about in after.budgets}
    for key in sorted({*old, *new}):
        was, now = old.get(key), new.get(key)
        if was is None and now is not None:
            found.append(Change(now.label, "", "", _summary(now)))
        elif now is None and was is not None:
            found.append(Change(was.label, "", _summary(was), ""))
        elif was is not None and now is not None:
            one, two = _fields(was), _fields(now)
            found += [
                Change(now.label, field, one.get(field, ""), two.get(field, ""))
                for field in dict.fromkeys([*one, *two])
                if one.get(field) != two.get(field)
            ]
    return found


def _summary(about: SpendingBudget) -> str:
    return ", ".join(f"{field} {value}" for field, value in _fields(about).items())


def _fields(about: SpendingBudget) -> dict[str, str]:
    said = {"soft": about.soft, "hard": about.hard, "carry_over": about.carry_over or None}
    found = {field: f"{value / 1e6:g}" for field, value in said.items() if value is not None}
    return found | ({"when_spent": about.when_spent.value} if about.hard is not None else {})
