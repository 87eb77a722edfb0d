"""The audit of operators' local actions (keys, files): each is a line in the operator's book, which is copied into the
ledger.

    with operator_action("team.revoke", "vision", reason, folder=folder, url=url):
        ...

The book is written first, and the line is sent to the ledger afterwards. While the broker is unavailable it waits; the
next action, `baton team push` or `baton audit push` sends it.
"""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from libs.bus import wire
from libs.bus.creds import Address
from libs.cli.exits import UsageFault, code_of
from libs.cli.output import hint
from libs.cli.release import tool
from libs.client.where import NO_BATON, check_operator, find, session_user, shown_credential, state_dir
from libs.walls.book import Book
from schemas.subjects import OPERATOR

ReasonOption = Annotated[str, typer.Option("--reason", help="Why, in your words: it is written into the ledger.")]
MayReason = Annotated[str, typer.Option("--reason", help="Why, in your words: it is written into the ledger.")]

_TELL_S = 5.0
_BATCH = 256


@contextmanager
def operator_action(
    what: str,
    target: str,
    reason: str,
    *,
    folder: Path | None = None,
    url: str | None = None,
    pool: str | None = None,
    needs_reason: bool = False,
    tells: bool = True,
    tells_failure: bool = True,
) -> Iterator[dict[str, str]]:
    """Records the action that the block performs. The block may set `detail` and `digest`. `pool`: the pool that it concerns,
    whose ledger gets the line, too. `tells=False`: there is no broker yet; the next action sends the line.
    `tells_failure=False`: a failed action is not sent at once, because there may be no broker.

    Raises UsageFault, before anything is done, when a reason is needed and there is none, or the book cannot be written;
    NeedsOperator, when the credential is another's and there are no keys; Invalid, when the broker's address is none.
    """
    home = book_folder(folder)
    if tells:
        _check(home, url)
    if needs_reason and not reason.strip():
        raise UsageFault(f"--reason is empty: {what} is written into the ledger, say why it is done")
    book = Book(home)
    try:
        book.make()
    except OSError as e:
        raise UsageFault(f"{home}: {e.strerror}: what an operator does is written down there first; name a folder that "
                         "may be written, by XDG_STATE_HOME") from None  # fmt: skip
    said = {
        "what": what, "target": target[:512], "reason": reason[:1024], "at_us": time.time_ns() // 1000,
        "host": socket.gethostname()[:255], "login": session_user()[:64], "tool": tool(),
    }  # fmt: skip
    failed = True
    try:
        with book.entry(said) as more:
            yield more
        failed = False
    finally:
        if tells and (tells_failure or not failed):
            tell(home, url)
            if pool and not failed:
                tell(home, url, pool=pool)


def _check(home: Path, url: str | None) -> None:
    if not (home / "keys.json").is_file():
        check_operator(shown_credential())
    if address := url or os.environ.get("BATON_NATS_URL"):
        wire.check_form(address)


def book_folder(folder: Path | None = None) -> Path:
    """Where the book is: beside the keys, else in the user's own state folder."""
    beside = folder or state_dir()
    if folder is not None or (beside / "keys.json").is_file() or (beside / "client.json").is_file():
        return beside
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "baton"


def tell(
    folder: Path, url: str | None = None, *, pool: str | None = None, again: bool = False, aloud: bool = False
) -> int:
    """Sends waiting lines to the ledger of `pool`, or of the pool that is found; returns their number. A failure undoes
    nothing. It is printed, and raised only if `aloud`: then sending is the command's purpose."""
    book = Book(folder)
    try:
        book.settle()
        return asyncio.run(_tell(book, folder, url, pool, again))
    except Exception as e:
        if aloud or code_of(e) is None:
            raise
        if (waiting := len(book)) and not _no_baton(e):
            lines, them = ("1 line is", "it") if waiting == 1 else (f"{waiting} lines are", "them")
            hint(f"the ledger was not told yet ({str(e).splitlines()[0]}): {lines} in {book.file}; "
                 f"`baton audit push` tells {them}")  # fmt: skip
        return 0


def _no_baton(error: Exception) -> bool:
    """No Baton is known; the lines wait until there is one."""
    return getattr(error, "what", "") == NO_BATON


async def _tell(book: Book, folder: Path, url: str | None, pool: str | None, again: bool) -> int:
    from libs.bus.messages import outgoing
    from libs.client.baton import connect
    from libs.client.sending import deliver
    from schemas import subjects
    from schemas.audit import line_hash
    from schemas.catalog import TYPE_OF
    from schemas.inbox import ActionTold

    mine = folder / "creds" / f"{OPERATOR}.creds"  # before BATON_NATS_CREDS, which may belong to another Baton
    address = Address(url or "", mine if mine.is_file() else None)
    place = find(address, OPERATOR, pool=pool, operator=True, environ={**os.environ, "BATON_STATE_DIR": str(folder)})
    if again:
        book.tell_again(place.pool)
    lines = book.untold(place.pool)
    if not lines:
        return 0
    who = place.user or OPERATOR
    async with await connect(place.address, OPERATOR, user=who, pool=place.pool) as baton:
        for at in range(0, len(lines), _BATCH):
            some = lines[at : at + _BATCH]
            items = [
                outgoing(
                    ActionTold(action=line, user=who),
                    subject=subjects.acted(place.pool, who),
                    type=TYPE_OF[ActionTold],
                    source="/baton/cli",
                    cause=f"{line.book}:{line.number}:{line_hash(line)}",
                )
                for line in some
            ]
            await deliver(baton.nats, items, give_up_s=_TELL_S)
            book.told(place.pool, some[-1])
    return len(lines)
