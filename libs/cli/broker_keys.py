"""The keys of this instance, and pushing changes made with them to a running broker."""

import asyncio
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from libs.cli.exits import UsageFault
from libs.cli.output import hint
from libs.client import Unreachable
from libs.client.where import check_operator, read_instance, shown_credential, state_dir
from libs.walls.departed_teams import DepartedTeams, TeamIsGone
from libs.walls.keyring import Keyring
from libs.walls.resolver import NotTold, tell


def ring_of(folder: Path | None) -> Keyring:
    """Raises UsageFault without keys, or NeedsOperator when another's credential is in use."""
    ring = Keyring(folder or state_dir())
    if not ring.exists:
        check_operator(shown_credential())
        raise UsageFault(
            f"there are no keys in {ring.folder}: run this where `baton up` or `baton credentials` did, or use --state-dir"
        )
    return ring


def staying(ring: Keyring, names: Iterable[str]) -> list[str]:
    """Those of `names` (teams and users) whose team has not left. Teams that have left are reported: a list that still
    names one is no reason to refuse the start, nor to issue credentials."""
    departed, gone = DepartedTeams(ring.folder), set[str]()
    out = []
    for name in names:
        team = name.partition(".")[0]
        try:
            departed.check(team)
            out.append(name)
        except TeamIsGone as e:
            if team not in gone:
                hint(f"no credential is made: {e}")
            gone.add(team)
    return out


def served(ring: Keyring, named: Iterable[str]) -> list[str]:
    """The present teams: those `named`, and those of the keys from earlier starts and `baton team add`; none that has
    left."""
    try:
        gone = DepartedTeams(ring.folder).left()
    except TeamIsGone:  # unreadable; `staying` reports each
        gone = frozenset()
    return sorted({*named, *ring.teams} - gone)


def tell_broker(ring: Keyring, accounts: Sequence[str], folder: Path | None, url: str | None) -> bool:
    """Pushes the accounts to the running broker. False if none runs here; then it reads them at its start."""
    try:
        address = url or os.environ.get("BATON_NATS_URL") or str(read_instance(folder or state_dir())["url"])
    except Unreachable:
        hint("Baton does not run here; it takes effect when it is started (`baton team push` for a server of your own)")
        return False
    try:
        asyncio.run(tell(address, ring, accounts))
    except ConnectionError as e:
        raise NotTold(
            f"{e}\nThe change is written in {ring.folder}; run `baton team push` once the broker is there"
        ) from e
    return True
