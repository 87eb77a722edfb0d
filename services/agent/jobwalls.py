"""The agent's side of jobs' isolation ("walls"): what it requests from its keeper, and which teams it serves without
walls."""

import errno
import json
import logging
import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from libs.ports.sockdiag import BOUND, LISTENING, tells
from schemas.ids import FIRST_TEAM_UID, team_uid
from schemas.jobs import JobLimits, Network
from schemas.nodes import NodeWalls
from schemas.resources import WALLS, Inventory
from services.agent import shared
from services.agent import view as views
from services.agent.keeper import callfilter, proc, walls
from services.agent.keeper.client import KeeperClient
from services.agent.view import JobView

log = logging.getLogger("baton.agent")

_NO_SHARES = (
    "processors are not shared fairly: a job that computes in many processes slows the others down (no cgroup with the cpu "
    "controller can be made here, or BATON_AGENT_CGROUPS is false)"
)
_OTHER_RELEASE = (
    "the keeper is of another release of Baton, and what it starts has that release's walls and shares of the processors: it "
    "ends when the agent is stopped (SIGTERM) and nothing runs"
)
_CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
_SYS_RESOURCE = 24
"""CAP_SYS_RESOURCE: who has it while it sets `oom_score_adj` also sets how low that may be set by others."""
SUMMARY_FILE = "walls"
"""A file in the agent's folder: its tier and, each in a line, what that lacks. `baton up` shows it."""


class JobWalls:
    """Walls of one agent. `teams`: a file of the teams served, by what separates their processes. `shares_cpu`: each
    attempt has a share of the processors. `http_port`: the agent's own, if configured."""

    def __init__(
        self,
        keeper: KeeperClient,
        view: JobView,
        teams: Path,
        several: bool,
        *,
        shares_cpu: bool = True,
        http_port: int = 0,
    ) -> None:
        self._keeper, self._view, self._file, self._several = keeper, view, teams, several
        self._shares_cpu, self._http_port = shares_cpu, http_port
        self._teams: dict[str, str] = _read(teams)
        """User id -> team; and "" -> the only team of a node without walls."""

    def announce(self) -> None:
        """Logs, and stores for whoever starts the agent, how jobs are isolated and what that lacks."""
        with suppress(OSError):
            self._file.with_name(SUMMARY_FILE).write_text("\n".join([self._keeper.tier, *self._lacks()]))
        level = logging.WARNING if self._keeper.tier == walls.NONE else logging.INFO
        log.log(level, "walls around jobs: %s", self.summary())

    def summary(self) -> str:
        """One line."""
        return ": ".join(filter(None, (self._keeper.tier, "; ".join(self._lacks()))))

    def found(self) -> NodeWalls | None:
        """The tier for the pool; None before the keeper has tried it, and where none is needed."""
        if not self._keeper.connected():
            return None
        return NodeWalls(tier=self._keeper.tier, lacks=tuple(text[:512] for text in self._lacks()))

    def labelled(self, inventory: Inventory) -> Inventory:
        """The inventory with the label of the tier, so that jobs beyond it are not placed here."""
        if inventory.simulated or not self._keeper.connected():
            return inventory
        return inventory.model_copy(update={"labels": {**inventory.labels, WALLS: self._keeper.tier}})

    def _lacks(self) -> list[str]:
        no_shares = "" if self._shares_cpu else _NO_SHARES
        other = "" if self._keeper.same_release else _OTHER_RELEASE
        return [text for text in (self._keeper.why, other, no_shares, *lacks(self._http_port)) if text]

    def no_walls_for(self, network: Network) -> str:
        """Why jobs without network access cannot run here, or ""."""
        if network is Network.HOST or self._keeper.tier != walls.NONE:
            return ""
        return f"its class has no network, and nothing on this machine takes it from a job ({self._keeper.why})"

    def not_served(self, team: str, trusted: str) -> str:
        """Why this team's processes cannot run here, or ""; for team "" whether any team's cannot."""
        tier = self._keeper.tier
        if tier == walls.FULL and team:
            return self._same_number(team)
        if tier != walls.NONE or self._several or not team:
            return ""
        only = trusted or self._teams.get("") or self._first(team)
        if team == only:
            return ""
        return (
            f"nothing keeps jobs apart on this machine ({self._keeper.why}), so it serves one team, {only!r}: "
            "BATON_AGENT_TRUSTED_TEAM names another, BATON_AGENT_TEAMS_WITHOUT_WALLS=true lets all in"
        )

    def team_of(self, uid: int) -> str:
        """The only team with this uid here; "" if unknown."""
        return self._teams.get(str(uid), "")

    def _first(self, team: str) -> str:
        self._keep("", team)
        return team

    def _same_number(self, team: str) -> str:
        other = self._teams.get(str(team_uid(team)))
        if other is None:
            self._keep(str(team_uid(team)), team)
        if other in (None, team):
            return ""
        return f"teams {team!r} and {other!r} have the same user id {team_uid(team)}: give one of them another name"

    def _keep(self, key: str, team: str) -> None:
        """Raises OSError: otherwise the next agent might give the user to another team."""
        teams = {**self._teams, key: team}
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(teams))
        new.replace(self._file)
        self._teams = teams

    def around(
        self,
        team: str,
        folders: Sequence[Path],
        devices: Sequence[str],
        memory: int,
        network: bool = True,
        limits: JobLimits | None = None,
        *,
        readable: Sequence[Path] = (),
        fresh: Sequence[Path] = (),
        has_memory: bool = False,
    ) -> dict[str, Any] | None:
        """The keeper's description of the walls around a job, with its folders, device files, bytes of memory and
        limits. The folders become its team's; those in `readable` are not written to (they may be in the host's
        memory). `fresh`: folders created just now for it; `has_memory`: it asked for some. None without walls.

        Raises OSError."""
        if self._keeper.tier == walls.NONE:
            return None
        root = os.geteuid() == 0
        uid, gid = (team_uid(team), team_uid(team)) if root else (os.geteuid(), os.getegid())
        if root:
            for folder in (*folders, *readable):
                if folder in fresh:
                    os.chown(folder, uid, uid)
                else:
                    hand_over(folder, uid)
        scratch_mib = limits.scratch_mib if limits else None
        arguments = self._view.arguments(folders, devices, network, memory, scratch_mib, readable)
        full = network and self._keeper.tier == walls.FULL
        prepared = self._view.prepared(folders, devices, memory, scratch_mib, readable) if full else None
        return views.spec(self._view, uid, gid, arguments, network, limits, prepared=prepared, has_memory=has_memory)


def lacks(http_port: int = 0) -> list[str]:
    """Isolation that this machine's kernel does not support, and what its settings let one job exhaust."""
    unknown = [
        text
        for there, text in (
            (callfilter.known(), "no filter of system calls is known for this processor"),
            (walls.scopes_known(), "no landlock scopes (Linux 6.12): jobs can meet at abstract Unix sockets"),
            (
                tells(LISTENING),
                "no word of who has sockets (kernel module tcp_diag): limits of sockets and ports are not kept",
            ),
            (tells(BOUND), "no word of ports that are only bound (Linux 6.8): a job can keep all at which gangs meet"),
            (
                not cores_are_piped(_CORE_PATTERN, resource.getrlimit(resource.RLIMIT_CORE)[1], os.geteuid() == 0),
                "cores of jobs go to a program of the machine's (core_pattern): the agent's hard limit of cores is 0, and "
                "one byte keeps them from it",
            ),
            (
                keeps_scores(),
                "a job can say that it is ended no sooner than services when the machine has no memory left (the agent has no "
                "CAP_SYS_RESOURCE)",
            ),
        )
        if not there
    ]
    return unknown + shared.lacking(http_port)


def cores_are_piped(pattern: Path, hard: int, is_root: bool) -> bool:
    """Whether cores of jobs reach the machine's program for them: a hard limit of 0 bytes keeps them from files alone, and
    only root makes it one byte."""
    if is_root or hard != 0:
        return False
    try:
        return pattern.read_text().startswith("|")
    except OSError:
        return False


def keeps_scores() -> bool:
    """Whether jobs cannot take back that they go first when memory is short."""
    with suppress(OSError, ValueError, IndexError):
        status = proc.read_text("/proc/self/status")
        return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> _SYS_RESOURCE & 1)
    return False


def asked(tier: str, view: JobView, ahead: Sequence[Sequence[str]] = ()) -> str:
    """Arguments for a new keeper (`python -m services.agent.keeper`): the tier to try, and the views to prepare, one
    per set of device files."""
    root = os.geteuid() == 0
    uid, gid = (FIRST_TEAM_UID, FIRST_TEAM_UID) if root else (os.geteuid(), os.getegid())
    spec = views.spec(view, uid, gid, view.arguments())
    shared = {"views": [view.shared(devices) for devices in ahead]} if ahead else {}
    return json.dumps({"asked": tier, "bwrap": views.launcher(), "spec": spec, **shared})


def hand_over(folder: Path, uid: int) -> None:
    """Gives the folder, with an earlier attempt's files, to this user. A file with a second name is left alone, since
    it may be the agent's. Raises OSError."""
    if os.stat(folder).st_uid == uid:
        return
    if os.listdir(folder):
        _hand_over_what_is_in(folder, uid)
    os.chmod(folder, 0o700)
    os.chown(folder, uid, uid)


def _hand_over_what_is_in(folder: Path, uid: int) -> None:
    try:
        for _, folders, files, at in os.fwalk(folder):
            for name in (*folders, *files):
                if name in folders or os.stat(name, dir_fd=at, follow_symlinks=False).st_nlink == 1:
                    os.chown(name, uid, uid, dir_fd=at, follow_symlinks=False)
    except RecursionError:
        raise OSError(errno.ELOOP, "its folders lie too deep in one another", str(folder)) from None


def _read(path: Path) -> dict[str, str]:
    try:
        return {str(key): str(team) for key, team in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}
