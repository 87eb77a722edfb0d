"""`baton team add|rotate|revoke|let-in|list|push`: the credentials of teams and users, changed at run time; `export`: a
team's data; `suspend|resume`: whether it may work."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from libs.bus.creds import speaker
from libs.cli import team_admin, team_export, team_offboard, team_pause, units
from libs.cli.broker_keys import ring_of, tell_broker
from libs.cli.exits import UsageFault
from libs.cli.operator_action import MayReason, ReasonOption, operator_action
from libs.cli.operator_action import tell as tell_ledger
from libs.cli.options import KeysFolder, NoHeader, Output, Url
from libs.cli.output import Column, Format, done, hint, show
from libs.cli.session import run
from libs.client.errors import ClientError
from libs.client.where import state_dir
from libs.core.accelerators.spelling import meant
from libs.walls.departed_teams import DepartedTeams
from libs.walls.keyring import Keyring, NotKeptOut, good_for
from libs.walls.people import People
from schemas.subjects import OPERATOR

app = typer.Typer(help="Teams and their credentials (operators).", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="A team, or one of its users as TEAM.USER.", metavar="TEAM[.USER]")]

Pseudonym = Annotated[
    bool | None,
    typer.Option(
        "--pseudonym/--plain",
        envvar="BATON_PSEUDONYMS",
        help="The name stays beside the keys and can be erased, all else has another; or is told to all. By default the first.",
        show_default=False,
    ),
]
Write = Annotated[
    Path | None,
    typer.Option("--write", help="Of an admin of the team: the file for the credential; else NAME.creds here."),
]

Returns = Annotated[
    bool,
    typer.Option(
        "--returns",
        help="It is the same team that was offboarded: it sees what is kept under its name. Any other needs another name.",
    ),
]

LastsDays = Annotated[
    int | None,
    typer.Option(
        "--days",
        min=1,
        max=3650,
        help="The credential ends by itself after so many days; rotating gives as many again. By default it never ends.",
    ),
]

_OWN = [
    Column("USER", lambda row: row.name),
    Column("PERSON", lambda row: row.person),
    Column("ADMIN", lambda row: "yes" if row.admin else ""),
]
_COLUMNS = [
    Column("TEAM", lambda row: row["team"]),
    Column("CREDENTIAL", lambda row: row["credential"]),
    Column("FILE", lambda row: row["file"]),
    Column("PERSON", lambda row: row["person"]),
    Column("ENDS", lambda row: row["ends"] + (" (soon)" if row["ends_soon"] else "")),
    Column("SUSPENDED", lambda row: row["suspended"]),
    Column("KEPT OUT", lambda row: row["kept_out"]),
]


app.command("export")(team_export.command)
app.command("offboard")(team_offboard.command)
app.command("suspend")(team_pause.suspend)
app.command("resume")(team_pause.resume)


@app.callback()
def _group() -> None:
    pass


@app.command()
def add(
    name: Name,
    reason: MayReason = "",
    *,
    admin: Annotated[bool, typer.Option("--admin", help="A user who manages the users of its own team.")] = False,
    days: LastsDays = None,
    returns: Returns = False,
    pseudonym: Pseudonym = None,
    write: Write = None,
    folder: KeysFolder = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Make an account for a team, or a credential for a user of it, and print where the credential is. May be repeated.

    A team that was offboarded is refused: what is kept under its name would be seen by whoever is added (--returns).
    An admin of a team, who has no keys, adds users of its own team; the new credential is written here."""
    if not admin and team_admin.asks(folder):
        _keys_only(days, returns)
        path = team_admin.credential("add", name, write, url, pseudonym=pseudonym)
        return _print_credential("added", speaker(path), path, output)
    ring = ring_of(folder)
    team = name.partition(".")[0]
    _check_team(ring, team, returns)  # before a person's name is stored
    asked, name = name, _new_person(ring, name, pseudonym)
    with operator_action("team.add", name, reason, folder=ring.folder, url=url) as act:
        known = set(ring.teams)
        path = _checked(ring, name, admin, days)
        if "." in name and team not in known:
            hint(f"{meant(team, known)}{team} was no team until now")
        if returns and DepartedTeams(ring.folder).forget(team):
            act["detail"] = "the team is back"
            hint(f"team {team} is back; offboarding suspended it: `baton team resume {team}` lets it work again")
        if not path.is_file():
            raise UsageFault(
                f"{name!r} has a credential that an admin of its team had made: `baton team rotate` makes another"
            )
        pushed = tell_broker(ring, [team], folder, url)
    if name != asked:
        user = name.partition(".")[2]
        hint(
            f"{asked} speaks as the user {user}, in subjects and as BATON_USER; with --plain a user is called as it is here"
        )
    _print_credential("added", name, path, output, pushed=pushed)


@app.command()
def rotate(
    name: Name,
    reason: MayReason = "",
    *,
    days: LastsDays = None,
    write: Write = None,
    folder: KeysFolder = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Make a new credential in the old one's place; whoever still uses the old one is cut off. Other users keep theirs."""
    if team_admin.asks(folder):
        _keys_only(days)
        path = team_admin.credential("rotate", name, write, url)
        return _print_credential("rotated", speaker(path), path, output)
    ring = ring_of(folder)
    name = _who_has_one(ring, name)
    with operator_action("team.rotate", name, reason, folder=ring.folder, url=url):
        path = ring.rotate(name, lasts_s=_seconds(days))
        pushed = tell_broker(ring, [name.partition(".")[0]], folder, url)
    _print_credential("rotated", name, path, output, pushed=pushed)


@app.command()
def revoke(
    name: Name, reason: ReasonOption, folder: KeysFolder = None, url: Url = None, output: Output = Format.TABLE
) -> None:
    """Cut a user off, or a team with all its users and its secrets. Jobs go on, and `baton team add` lets them in again."""
    if team_admin.asks(folder):
        team_admin.manage("revoke", name, url)
        return _print_credential("revoked", name, None, output)
    ring = ring_of(folder)
    name = _who_has_one(ring, name)
    with operator_action("team.revoke", name, reason, folder=ring.folder, url=url, needs_reason=True):
        ring.revoke(name)
        pushed = tell_broker(ring, [name.partition(".")[0]], folder, url)
        removed = None if "." in name else _remove_secrets(name, url)
    _print_credential("revoked", name, None, output, pushed=pushed, secrets_removed=removed)


def _print_credential(
    what: str, name: str, file: Path | None, output: Format, *, pushed: bool = True, **more: object
) -> None:
    """A credential's path, never its content: a command's output may end up in a log."""
    about = {"team": name.partition(".")[0], "credential": name, "file": file and str(file), "done": what}
    done({**about, "broker_told": pushed, **more}, [str(file or name)], output, names=[name])


@app.command("let-in")
def let_in(
    team: Annotated[str, typer.Argument(help="A team that `baton team list` shows as kept out.", metavar="TEAM")],
    reason: MayReason = "",
    folder: KeysFolder = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Let a team that sent or heard too much connect again now, before its time is over. Does it so again within an hour, it is
    kept out for twice as long."""
    ring = ring_of(folder)
    with operator_action("team.let-in", team, reason, folder=ring.folder, url=url):
        try:
            ring.let_in(team)
        except NotKeptOut as e:
            raise UsageFault(
                f"{e}; `baton team list` shows until when (`baton team resume` ends a suspension)"
            ) from None
        pushed = tell_broker(ring, [team], folder, url)
    done({"team": team, "done": "let in", "broker_told": pushed}, [team], output)


@app.command()
def erase(
    name: Name, reason: MayReason = "", folder: KeysFolder = None, url: Url = None, output: Output = Format.TABLE
) -> None:
    """Forget who a pseudonym was, or all of a team's, and void the credentials. What they did stays under the pseudonym."""
    ring, pushed = ring_of(folder), False
    team, _, user = name.partition(".")
    if user:
        # Before the book has a line: a name unknown here still belongs to a person.
        People(ring.folder).check(team, user)
    with operator_action(
        "team.erase", _person(ring, name), reason, folder=ring.folder, url=url
    ):  # never the name itself
        people = People(ring.folder)
        gone = [f"{team}.{one}" for one in people.called(team, user)]
        for one in gone:
            if team in ring.teams and one in ring.users(team):
                ring.revoke(one)
        people.erase(team, user)  # last: nobody could say any more whose credential was to be void
        if team in ring.teams:
            pushed = tell_broker(ring, [team], folder, url)
    done({"team": team, "credentials": gone, "done": "erased", "broker_told": pushed}, gone, output)
    hint("older backups still say who it was: erase again after restoring one")


@app.command("list")
def list_(
    folder: KeysFolder = None, output: Output = Format.TABLE, no_header: NoHeader = False, url: Url = None
) -> None:  # fmt: skip
    """Every credential that is good. A team without any was revoked; one that is suspended says where, since when and why, and
    one that is kept out because it sent too much until when."""
    if team_admin.asks(folder):
        mine = team_admin.manage("list", "", url)
        return show(mine.users, _OWN, output, header=not no_header)
    ring, paused = ring_of(folder), _suspended(url)
    keys, people = ring.keys(), People(ring.folder).all()  # once for all teams
    out = keys.kept_out
    rows: list[dict[str, Any]] = [
        {
            "team": team,
            "credential": name,
            "file": str(ring.creds / f"{name}.creds") if name else "",
            "person": people.get(team, {}).get(name.partition(".")[2], ""),
            "ends": units.moment(int(ends[name].ends_s * 1e6)) if name in ends else "",
            "ends_soon": name in ends and ends[name].soon(time.time()),
        }
        for team, owner in sorted(keys.teams.items())
        for ends in [good_for(owner)]
        for name in sorted(owner.users) or [""]
    ]
    rows += [
        {"team": team, "credential": "", "file": "", "person": "", "ends": "", "ends_soon": False}
        for team in paused
        if team not in keys.teams
    ]
    for row in rows:
        row["suspended"] = paused.get(row["team"], "")
        row["kept_out"] = f"until {units.moment(out[row['team']] * 1_000_000)}" if row["team"] in out else ""
    show(rows, _COLUMNS, output, header=not no_header)


@app.command()
def serve(folder: KeysFolder = None, url: Url = None) -> None:
    """Answer admins of teams, until Ctrl-C: for a broker of your own, where the keys are. `baton up` does it by itself."""
    team_admin.serve(ring_of(folder), folder or state_dir(), url)


@app.command()
def push(folder: KeysFolder = None, url: Url = None, output: Output = Format.TABLE) -> None:
    """Tell the broker of every account again: after it was away, or lost what it keeps, or `baton credentials` made more.

    The ledger is told of what was done meanwhile."""
    ring = ring_of(folder)
    pushed = tell_broker(ring, ring.accounts, folder, url)
    actions = tell_ledger(ring.folder, url)
    teams = list(ring.teams)
    done({"teams": teams, "done": "told", "broker_told": pushed, "actions_told": actions}, teams, output)


def _remove_secrets(team: str, url: str | None) -> bool:
    """Whether all secrets of the team are removed. If vault stays unreachable, the credential is void all the same, and
    the remedy is printed."""
    try:
        run(lambda baton: team_offboard.remove_secrets(baton, team), OPERATOR, url)
    except ClientError as e:
        hint(f"secrets of {team} are still there ({e.what}): `baton secret remove --of {team} --all`")
        return False
    return True


def _suspended(url: str | None) -> dict[str, str]:
    """Team -> the pools where it is suspended, since when and why, in words; prints a hint for each pool that does not
    answer."""
    try:
        found = run(team_pause.suspended, OPERATOR, url)
    except ClientError as e:
        hint(f"whether a team is suspended is not known: {e}")
        return {}
    lines: dict[str, list[str]] = {}
    for pool, teams in found.items():
        if isinstance(teams, ClientError):
            hint(f"whether a team is suspended in pool {pool} is not known: {teams}")
            continue
        for team, how in teams.items():
            left = "" if how.left_us is None else " (it has left)"
            lines.setdefault(team, []).append(f"{pool} since {units.moment(how.since_us)}: {how.reason}{left}")
    return {team: "; ".join(where) for team, where in sorted(lines.items())}


def _keys_only(days: int | None, returns: bool = False) -> None:
    if returns:
        raise UsageFault("--returns is for who has the keys: ask an operator")
    if days is not None:
        raise UsageFault(
            "--days is for who has the keys: an admin of a team asks an operator for a credential that ends"
        )


def _seconds(days: int | None) -> int | None:
    return None if days is None else days * 86_400


def _check_team(ring: Keyring, team: str, returns: bool) -> None:
    """Raises UsageFault for an invalid team name, and for a team that has left, unless it is said to be back."""
    try:
        ring.check_team(team)
        if not returns:
            DepartedTeams(ring.folder).check(team)
    except ValueError as e:
        raise UsageFault(str(e)) from None


def _checked(ring: Keyring, name: str, admin: bool, days: int | None) -> Path:
    try:
        return ring.team(name, admin=admin, lasts_s=_seconds(days))
    except ValueError as e:
        raise UsageFault(str(e)) from None


def _new_person(ring: Keyring, name: str, asked: bool | None) -> str:
    """The pseudonym of a person of a team, drawn if there is none. Or the name itself, for a team, for a user who has a
    credential by that name, or if a plain one is requested."""
    team, dot, user = name.partition(".")
    if (dot and team in ring.teams and name in ring.users(team)) or not People(ring.folder).wanted(asked):
        return _person(ring, name)
    if not dot and not asked:
        return name
    if not dot:
        raise UsageFault(f"{name!r} is a whole team: a pseudonym is one person's, TEAM.NAME")
    try:
        return f"{team}.{People(ring.folder).pseudonym(team, user)}"
    except ValueError as e:
        raise UsageFault(str(e)) from None


def _who_has_one(ring: Keyring, name: str) -> str:
    """The team, or the user behind a person's name. Raises NoCredential for a user without one, before anything is
    recorded: a mistyped or erased name is a person's, and book and ledger would keep it for ever."""
    name = _person(ring, name)
    if "." in name:
        ring.check_user(name)
    return name


def _person(ring: Keyring, name: str) -> str:
    """The user behind a person's name; any other name unchanged."""
    team, dot, user = name.partition(".")
    return f"{team}.{People(ring.folder).known(team, user)}" if dot else name
