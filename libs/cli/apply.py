"""`baton apply -f FILE` and `baton diff -f FILE`: the queues of a pool, from a file, all or nothing."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from libs.cli.exits import UsageFault
from libs.cli.options import Pool, Url, UserOption
from libs.cli.output import hint, say
from libs.cli.queuesfile import QueueFileError, read_queues
from libs.cli.session import run
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import Failed, TimedOut
from libs.core.scheduling.queues import Change, changes
from libs.core.state.queue_tree import QueueTree
from schemas import subjects
from schemas.catalog import TYPE_OF
from schemas.inbox import ApplyQueues
from schemas.queries import QueuesQuery, QueuesReply

_GIVE_UP_S = 30.0
_DECIDED_S = 15.0
_LOOK_S = 0.1

QueueFileOption = Annotated[Path, typer.Option("--file", "-f", help="A queue file, YAML; - for standard input.")]


def command(
    file: QueueFileOption,
    reason: Annotated[str, typer.Option("--reason", help="Why: it is in the ledger.")] = "",
    *,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
) -> None:
    """Give the pool the queues of a file, all of them. What is not in the file is gone; what runs is left alone."""
    text = _read(file)

    async def work(baton: Baton) -> tuple[list[Change], int]:
        before, then = await _compared(baton, text, str(file))
        found = changes(before, then)
        if found:
            await _apply(baton, before, then, reason)
        return found, then.version

    found, version = run(work, subjects.OPERATOR, url, user=user, pool=pool)
    _show(found)
    if found:
        hint(f"version {version} is applied; `baton get queues` shows how the pool is shared")


def compare(file: QueueFileOption, *, pool: Pool = None, user: UserOption = None, url: Url = None) -> None:
    """What `baton apply` would change. Exit code 0: nothing, 1: something."""
    text = _read(file)

    async def work(baton: Baton) -> list[Change]:
        return changes(*await _compared(baton, text, str(file)))

    found = run(work, subjects.OPERATOR, url, user=user, pool=pool)
    _show(found)
    if found:
        raise typer.Exit(1)


def _show(found: list[Change]) -> None:
    for change in found:
        say(change.text())
    if not found:
        hint("nothing differs")


def _read(file: Path) -> str:
    try:
        return typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFault(f"{file} cannot be read: {error}; name a YAML file in UTF-8 with -f") from None


async def _compared(baton: Baton, text: str, name: str) -> tuple[QueueTree, QueueTree]:
    """The queues that there are, and those of the file. Raises UsageFault when the file is wrong."""
    told: QueuesReply = await ask(baton.nats, "queues.list", baton.place, QueuesQuery())
    try:
        version, queues = read_queues(text, name, told.classes or None, told.kinds)
    except QueueFileError as error:
        raise UsageFault(str(error)) from None
    return _tree(told), QueueTree.of(queues, version)


def _tree(told: QueuesReply) -> QueueTree:
    """Without teams that only stand where they are because nobody has given them a queue."""
    return QueueTree.of([share.queue for share in told.shares if share.applied], told.version)


async def _apply(baton: Baton, before: QueueTree, then: QueueTree, reason: str) -> None:
    from libs.bus.messages import outgoing
    from libs.client.sending import deliver

    who = baton.place.user or "operator"
    if then.version <= before.version:
        raise Failed(
            f"version {then.version} is not above {before.version}, which is applied",
            "another file was applied, or this one was changed without raising its version",
            f"look at the lines of `baton diff`, then write `version: {before.version + 1}`",
        )
    said = ApplyQueues(version=then.version, queues=tuple(then), reason=reason, user=who)
    item = outgoing(
        said,
        subject=subjects.apply_queues(baton.place.pool, who),
        type=TYPE_OF[ApplyQueues],
        source="/baton/cli",
        cause=f"queues:{then.version}:{os.urandom(8).hex()}",
    )
    await deliver(baton.nats, [item], give_up_s=_GIVE_UP_S)
    for _ in range(int(_DECIDED_S / _LOOK_S)):
        told: QueuesReply = await ask(baton.nats, "queues.list", baton.place, QueuesQuery())
        if told.version == then.version and _tree(told) == then:
            return
        if told.version > before.version:
            raise Failed(
                f"version {told.version} was applied meanwhile", "somebody else was quicker", "look at `baton diff`"
            )
        await asyncio.sleep(_LOOK_S)
    raise TimedOut(
        f"the pool has not decided it within {_DECIDED_S:g} s",
        "its placement is away, slow, or has refused it",
        "`baton dead list` says why it was refused; `baton status` whether it decides",
    )
