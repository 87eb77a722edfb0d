"""`baton team offboard TEAM --export FOLDER --reason TEXT`: a team leaves. Each step is shown, and the same command goes on
where it was ended: a step looks at what is there, and does what is left.

    suspend    in every pool: nothing new of it is taken or starts (and never again, unless somebody resumes it)
    jobs       cancelled with --cancel, or waited for
    export     FOLDER: jobs, events, bills, quotas, with the hash of each file
    revoke     every credential of it; that it has left is noted beside the keys, so that nobody else gets its name unwarned
    secrets    removed in every version: only now can none of its people set another
    erase      who its users were: the names of pseudonyms
    nodes      in every pool: it has left, so nodes remove what they keep of it
"""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from nats.errors import Error as NatsError

from libs.bus.copies import sha256
from libs.bus.table import SECRETS_BUCKET
from libs.cli import team_export, team_pause
from libs.cli.broker_keys import ring_of
from libs.cli.exits import UsageFault
from libs.cli.known_team import warn_of_unknown
from libs.cli.operator_action import operator_action
from libs.cli.options import ArchiveFolder, KeysFolder, Output, Url, UserOption
from libs.cli.output import Format, done, hint, say
from libs.cli.pools import KnownPools, ToldToPools, pools_of
from libs.cli.session import run
from libs.cli.team_export import as_team
from libs.client import Baton, Failed, NotFound, TimedOut, Unreachable
from libs.client.asking import ask
from libs.walls.departed_teams import DepartedTeams
from libs.walls.keyring import Keyring
from libs.walls.people import People
from libs.walls.resolver import tell
from schemas.jobs import JobState
from schemas.pool_status import PoolStatus, PoolStatusQuery, SuspendedTeam
from schemas.subjects import OPERATOR

_LOOK_S, _HISTORY_LAGS_S = 0.5, 60.0
_AGAIN_S, _TELL_S = 30.0, 10.0
"""The longest time until a job is cancelled again; and between two progress lines."""
_VAULT_S = 30.0
_OPEN = tuple(state for state in JobState if not state.terminal)


@dataclass(frozen=True, slots=True)
class Leaving:
    """An operator's request."""

    team: str
    folder: Path
    reason: str
    cancel: bool
    wait_s: float
    archive: Path | None = None


def command(
    team: team_pause.TeamName,
    export: Annotated[
        Path, typer.Option("--export", help="A new folder for what it takes along, in a folder that is there.")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why: it is in the ledger, and the team is told.")],
    *,
    cancel: Annotated[bool, typer.Option("--cancel", help="End its jobs; else they are waited for.")] = False,
    wait: Annotated[float, typer.Option("--wait", min=0, help="For its jobs at the most, s.")] = 3600.0,
    archive: ArchiveFolder = None,
    folder: KeysFolder = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """A team leaves: suspended, its jobs ended, all of its own exported, credentials void, secrets removed. May be repeated.

    What is kept of it stays under its name: `baton team add` refuses that from then on, unless the same team --returns."""
    ring = ring_of(folder)
    check_folder(export, team)
    asked = Leaving(team, export, reason, cancel, wait, archive)
    with operator_action("team.offboard", team, reason, folder=ring.folder, url=url, needs_reason=True):
        run(lambda baton: _offboard(baton, ring, asked, output), OPERATOR, url, user=user)
    hint(
        "nodes remove homes, output and checkpoints of its jobs within ten minutes, or when their agents start: "
        "`baton get nodes -o wide` shows in CLEARED by which record each has"
    )


async def _offboard(baton: Baton, ring: Keyring, asked: Leaving, output: Format) -> None:
    """Prints each step as it is done: for people on stderr, for programs all at the end, whatever happens."""
    steps: dict[str, str] = {}
    show = say if output.of_lines else hint

    def shown(name: str, found: str) -> None:
        steps[name] = found
        show(f"{name}\t{found}")

    error, in_pools = "interrupted", [ToldToPools()]
    try:
        await warn_of_unknown(baton, asked.team)
        await offboard(baton, ring, asked, shown, in_pools.append)
        error = ""
    except Exception as e:
        error = str(e) or type(e).__name__
        raise
    finally:
        document: dict[str, Any] = {"team": asked.team, "folder": str(asked.folder), "steps": steps, "error": error}
        document |= {"done": "" if error else "offboarded", "pools": in_pools[-1].for_programs()}
        done(document, [], output, names=[] if error else [asked.team])


def check_folder(folder: Path, team: str) -> None:
    """Checks before anything is done. Raises UsageFault unless `folder` is new, in a writable folder, or has this
    team's earlier export, which is then continued."""
    if folder.is_symlink() or folder.exists():
        about = _exported(folder)
        if about.get("team") != team:
            raise UsageFault(f"{folder} is there already, and no export of team {team}: name a new folder")
        for file, digest in ((folder / name, digest) for name, digest in about["sha256"].items()):
            if not file.is_file() or sha256(file) != digest:
                raise UsageFault(f"{file} is not what was exported: name a new folder")
    elif not folder.parent.is_dir():
        raise UsageFault(f"{folder}: there is no folder {folder.parent}: make it first")
    elif not os.access(folder.parent, os.W_OK | os.X_OK):
        raise UsageFault(f"{folder}: the folder {folder.parent} may not be written: name one that may")


def _exported(folder: Path) -> dict[str, Any]:
    """The content of about.json; empty unless `team_export.write` wrote it."""
    try:
        about = json.loads((folder / "about.json").read_text())
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) and isinstance(about.get("sha256"), dict) else {}


async def offboard(
    baton: Baton,
    ring: Keyring,
    asked: Leaving,
    show: Callable[[str, str], None],
    hear: Callable[[ToldToPools], None] = lambda results: None,
) -> ToldToPools:
    """Runs every step in order; `show` gets each result, `hear` the results of commands to all pools. Returns the last
    of these: for each pool the ledger record that tells nodes that the team has left. Raises ClientError; completed
    steps stay."""
    pools, last = await pools_of(baton), ToldToPools()

    def heard(results: ToldToPools) -> ToldToPools:
        nonlocal last
        last = results
        hear(results)
        results.check()
        return results

    steps: dict[str, Callable[[], Awaitable[str]]] = {
        "suspend": lambda: _suspend(baton, asked, pools, heard),
        "jobs": lambda: _end_jobs(baton, asked, pools),
        "export": lambda: _export(baton, asked),
        "revoke": lambda: _revoke(baton, ring, asked),
        "secrets": lambda: _secrets(baton, asked),
        "erase": lambda: _erase(ring, asked),
        "nodes": lambda: _nodes(baton, asked, pools, heard),
    }
    for name, step in steps.items():
        show(name, await step())
    return last


async def _suspend(baton: Baton, asked: Leaving, pools: KnownPools, heard: Callable[[ToldToPools], ToldToPools]) -> str:
    """A closed pool gets the command each time, since it does not say whether it has it."""
    known = await team_pause.suspensions(baton, pools.in_use, asked.team)
    if not pools.closed and all(isinstance(there, SuspendedTeam) for there in known.values()):
        return "was suspended already"
    return f"in {', '.join(heard(await team_pause.pause(baton, asked.team, asked.reason)).decided)}"


async def _end_jobs(baton: Baton, asked: Leaving, pools: KnownPools) -> str:
    """A pool remembers so many cancels of a team's jobs that are being stopped for another reason, so they are repeated, at
    growing intervals because admission limits them. Jobs of a closed pool can neither end nor continue."""
    now, team, most, pause_s = time.monotonic, as_team(baton, asked.team), 0, _LOOK_S
    until, again_at, tell_at = now() + asked.wait_s, now(), now() + _TELL_S
    while left := await _left(team, pools):
        most = max(most, left)
        if now() > until:
            raise TimedOut(
                f"{left} jobs of {asked.team} have not ended within {asked.wait_s:g} s",
                "they wait or run still",
                "run the same command again; with --cancel they are ended",
            )
        if now() > tell_at:
            hint(f"{left} of {most} jobs of {asked.team} wait or run still")
            tell_at = now() + _TELL_S
        if asked.cancel and now() >= again_at:
            await _cancel_all(team, pools, f"team {asked.team} leaves: {asked.reason}"[:512])
            again_at, pause_s = now() + pause_s, min(2 * pause_s, _AGAIN_S)
        await asyncio.sleep(_LOOK_S)
    there = Counter[str]()
    for _ in range(int(_HISTORY_LAGS_S / _LOOK_S)):  # history is a moment behind, and the export reads history
        there = await _open(team)
        if not there.keys() - set(pools.closed):
            break
        await asyncio.sleep(_LOOK_S)
    stay = ", ".join(f"{there[pool]} of {pool}" for pool in pools.closed if there[pool])
    ended = f"{most} have ended" if most else "none waits or runs"
    return f"{ended}; as they were last stay {stay} (closed)" if stay else ended


async def _cancel_all(team: Baton, pools: KnownPools, reason: str) -> None:
    """A page at a time, since a team may have very many."""
    said, tell_at = 0, time.monotonic() + _TELL_S
    async for page in team.pages(states=_OPEN):
        jobs = [job.job_id for job in page if job.pool not in pools.closed]
        await team.cancel_many(jobs, reason)
        said += len(jobs)
        if time.monotonic() > tell_at:
            hint(f"{said} jobs of {team.team} have been cancelled so far")
            tell_at = time.monotonic() + _TELL_S


async def _open(team: Baton) -> Counter[str]:
    """Number of unfinished jobs by pool, from history."""
    return Counter([job.pool async for page in team.pages(states=_OPEN) for job in page])


async def _left(team: Baton, pools: KnownPools) -> int:
    """Number of the team's waiting and running jobs in all open pools, from the ledgers."""
    count = 0
    for pool in pools.in_use:
        status: PoolStatus = await ask(team.nats, "pool.status", team.place, PoolStatusQuery(), pool=pool)
        count += sum(status.jobs.values())
    return count


async def _export(baton: Baton, asked: Leaving) -> str:
    """The export in `folder` is complete. A pool that does not answer, and whose ledger is unreadable, does not hold up
    the team's departure."""
    if _exported(asked.folder).get("team") == asked.team:
        return f"was written already: {asked.folder}"
    about = await team_export.write(baton, asked.folder, asked.team, asked.archive)
    lacks = "".join(f"; {line}" for line in team_export.lacking(about))
    return f"{asked.folder}: " + ", ".join(f"{count} {what}" for what, count in about["counts"].items()) + lacks


async def remove_secrets(baton: Baton, team: str) -> int:
    """Removes all of the team's secrets; returns their number. Waits for a vault that is unreachable or restarting,
    since otherwise the team's jobs could still get them. Raises ClientError."""
    until = time.monotonic() + _VAULT_S
    while True:
        try:
            return len(await baton.remove_secret(None, team))
        except NotFound:
            return 0
        except (Unreachable, Failed):
            if not await _has_secrets(baton, team):
                return 0
            if time.monotonic() > until:
                raise
            await asyncio.sleep(_LOOK_S)


async def _has_secrets(baton: Baton, team: str) -> bool:
    """Whether the team has or had secrets, from the broker's list of entries, without their content."""
    try:
        found = await baton.nats.jetstream().stream_info(
            f"KV_{SECRETS_BUCKET}", subjects_filter=f"$KV.{SECRETS_BUCKET}.{team}"
        )
    except NatsError:
        return True
    return bool(found.state.subjects)


async def _revoke(baton: Baton, ring: Keyring, asked: Leaving) -> str:
    """The note is written first: otherwise anyone could add the revoked team again by mistake."""
    await asyncio.to_thread(DepartedTeams(ring.folder).note, asked.team, time.time())
    if asked.team not in ring.teams:
        return "it never had a credential"
    users = ring.users(asked.team)
    if users:
        ring.revoke(asked.team)
    await tell(baton.place.address.url, ring, [asked.team])
    return f"{len(users)} credentials are void"


async def _secrets(baton: Baton, asked: Leaving) -> str:
    return f"{await remove_secrets(baton, asked.team)} removed"


async def _erase(ring: Keyring, asked: Leaving) -> str:
    gone = await asyncio.to_thread(People(ring.folder).erase, asked.team)
    return f"{len(gone)} names are forgotten; their pseudonyms stay in ledger and bills"


async def _nodes(baton: Baton, asked: Leaving, pools: KnownPools, heard: Callable[[ToldToPools], ToldToPools]) -> str:
    """A repetition finds the same, in a later record. A closed pool has no nodes to tell."""
    results = heard(await team_pause.leave(baton, asked.team, asked.reason, pools.in_use))
    said = ", ".join(f"{pool} from record {seq} on" for pool, seq in sorted(results.decided.items()))
    later = f"; not {', '.join(pools.closed)} (closed): say it again when that is opened" if pools.closed else ""
    return f"are told by {said} that its files go{later}"
