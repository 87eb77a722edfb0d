"""`baton apply -f FILE` and `baton diff -f FILE`: replaces a pool's queues, or its budgets, with those of a file, all
or nothing."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from libs.cli import apply_budgets
from libs.cli.budgetsfile import is_budgets, top_names
from libs.cli.exits import UsageFault
from libs.cli.files import read_yaml
from libs.cli.options import Output, Pool, Url, UserOption
from libs.cli.output import Format, done, hint
from libs.cli.pool_commands import NOTHING_DIFFERS, check_version, say_to_pool
from libs.cli.queuesfile import QueueFileError, read_tree
from libs.cli.session import run
from libs.client import Baton
from libs.client.asking import ask
from libs.core.scheduling.queues import Change, beyond_the_pool, changes
from libs.core.state.queue_tree import QueueTree
from schemas import subjects
from schemas.inbox import ApplyQueues
from schemas.pool_status import PoolStatus, PoolStatusQuery
from schemas.queue_status import QueuesQuery, QueuesReply

QueueFileOption = Annotated[
    Path, typer.Option("--file", "-f", help="A file of queues or budgets, YAML; - for standard input.")
]


def command(
    file: QueueFileOption,
    reason: Annotated[str, typer.Option("--reason", help="Why: it is in the ledger.")] = "",
    *,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Give the pool the queues of a file, all of them, or its budgets. What is not in the file is gone; what runs is left
    alone."""
    text = _to_apply(file)

    async def work(baton: Baton) -> tuple[Difference, dict[str, Any]]:
        found, apply = await _difference(baton, text, str(file))
        seq = await apply(reason) if found.changes else None
        what = "applied" if found.changes else NOTHING_DIFFERS
        return found, {"pool": baton.place.pool, **found.document(), "done": what, "ledger_seq": seq}

    found, document = run(work, subjects.OPERATOR, url, user=user, pool=pool)
    done(document, found.lines(), output)
    if found.changes:
        hint(f"version {found.version} is applied; {_SHOWN[found.what]}")
    else:
        hint(NOTHING_DIFFERS)


_SHOWN = {
    "queues": "`baton get queues` shows how the pool is shared",
    "budgets": "`baton budget show` shows what is spent of them",
}


def compare(
    file: QueueFileOption,
    *,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """What `baton apply` would change. Exit code 0: nothing, 1: something."""
    text = _to_apply(file)

    async def work(baton: Baton) -> Difference:
        return (await _difference(baton, text, str(file)))[0]

    differs = run(work, subjects.OPERATOR, url, user=user, pool=pool)
    done(differs.document(), differs.lines(), output)
    if not differs.changes:
        hint(NOTHING_DIFFERS)
    else:
        raise typer.Exit(1)


class Difference(NamedTuple):
    """The effect of applying a file: the version in force (0: none), the file's version, and each change."""

    what: str
    applied: int
    version: int
    changes: list[Change]
    warnings: list[str]

    def document(self) -> dict[str, Any]:
        """The form for programs."""
        return self._asdict() | {"changes": [change._asdict() for change in self.changes]}

    def lines(self) -> list[str]:
        """The lines for people."""
        return [change.text() for change in self.changes]


Apply = Callable[[str], Awaitable[int | None]]
"""Applies a file for a reason; returns the ledger record that decided it."""


def _to_apply(file: Path) -> str:
    """The text of the file. Raises UsageFault if the file belongs to another command."""
    text = read_yaml(file, "-f")
    for names, what, use in _OTHER_FILES:
        if not names.isdisjoint(top_names(text)):
            raise UsageFault(f"{file} is {what}, and queues or budgets are applied: {use}".format(file=file))
    return text


_OTHER_FILES = (
    ({"command", "gpus", "resources", "simulation"}, "a job file", "write baton submit -f {file}"),
    ({"prices"}, "a price book", "write baton prices apply -f {file}"),
    ({"apiVersion", "kind"}, "a Kubernetes manifest", "see docs/queues.md, and docs/job-spec.md for jobs"),
    ({"groups"}, "a fleet file", "write baton up --fleet {file}"),
    ({"teams"}, "a file of teams", "write baton up --quotas {file}, or see `baton quota set`"),
)
"""Top-level names of other files; no file of queues or budgets has them."""


async def _difference(baton: Baton, text: str, name: str) -> tuple[Difference, Apply]:
    """The effect of applying a file. Raises UsageFault when the file is invalid."""
    if is_budgets(text):
        standing, wanted, found = await apply_budgets.compared(baton, text, name)
        differs = Difference("budgets", standing.version, wanted.version, found, [])
        return differs, partial(apply_budgets.apply, baton, standing, wanted)
    reply: QueuesReply = await ask(baton.nats, "queues.list", baton.place, QueuesQuery())
    try:
        then = read_tree(text, name, reply.classes or None, reply.kinds)
    except QueueFileError as error:
        raise UsageFault(str(error)) from None
    before = _tree(reply)
    differs = Difference("queues", before.version, then.version, changes(before, then), await _warn(baton, then))
    return differs, partial(apply_tree, baton, before, then)


async def _warn(baton: Baton, tree: QueueTree) -> list[str]:
    """Warns of guarantees that the present pool could not keep."""
    status: PoolStatus = await ask(baton.nats, "pool.status", baton.place, PoolStatusQuery())
    warnings = beyond_the_pool(tree, status.kinds)
    for line in warnings:
        hint(f"warning: {line}")
    return warnings


def _tree(reply: QueuesReply) -> QueueTree:
    """The queues, without teams that appear only because nobody has given them a queue."""
    return QueueTree.of(
        [share.queue for share in reply.shares if share.applied],
        reply.version,
        reply.order,
        reply.half_life_s,
        reply.preemption,
    )


async def apply_tree(baton: Baton, before: QueueTree, then: QueueTree, reason: str) -> int | None:
    """Gives the pool the queues `then` in place of `before`; returns the ledger record."""
    who = baton.place.user or "operator"
    check_version(then.version, before.version)

    async def applied() -> bool:
        document: QueuesReply = await ask(baton.nats, "queues.list", baton.place, QueuesQuery())
        return document.version == then.version and _tree(document) == then

    said = ApplyQueues(
        version=then.version,
        queues=tuple(then),
        order=then.order,
        half_life_s=then.half_life_s,
        preemption=then.preemption,
        reason=reason,
        user=who,
    )
    subject = subjects.apply_queues(baton.place.pool, who)
    return await say_to_pool(baton, baton.place.pool, said, subject, f"queues:{then.version}", done=applied)
