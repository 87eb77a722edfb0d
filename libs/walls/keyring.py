"""The keys and credentials of one instance, in a folder that only its owner may read.

    keys.json               the seeds of the operator, of every account and of its roles; who was given a credential
    creds/                  one file for each credential, as NATS clients read it (`user_credentials`, `nats --creds`)
        operator.creds      a person who sees all teams
        <team>.creds, <team>.<user>.creds
        finance/<user>.creds    who reads all bills, and does nothing
        services/<service>/nats.creds
        nodes/<pool>/, nodes/<pool>.<node>/    of an agent: nats.creds, and logs.creds to answer for logs

Whoever has `keys.json` can make any credential: it belongs on the host that administers, and nowhere else. A credential that
was handed out stays good until it is rotated or revoked; what its role may do follows Baton's version.
"""

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from libs.bus.creds import CREDS_FOLDER, LOGS_CREDS
from libs.bus.endings import GoodFor
from libs.bus.wire import CA_FILE
from libs.ports.private_files import open_lock, write_private
from libs.walls import claims, keys_of
from libs.walls.accounts import ADMIN, CORE, FINANCE, LOGS, NODE, POOL_LOGS, READER, SERVICES, TEAM, USER
from libs.walls.claims import KeyKind
from libs.walls.keyfile import KEYS_FILE, AccountKeys, Keys, NewerKeys, new_key, new_keys
from libs.walls.keys_of import NODE_MARK, NoCredential
from libs.walls.names import check_numbers, check_teams, checked
from libs.walls.people import People
from schemas import subjects
from schemas.subjects import OPERATOR, token

_ONE = "nats.creds"
"""Of a process: alone in its folder, which can be given to it."""


class NotKeptOut(LookupError):
    """The team is not kept out; the text says which are."""


class Keyring:
    """See above. Every change is made under a lock and written before the method returns: several processes may work on one
    folder. `now` gives seconds since 1970."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self.folder, self.now = folder, now
        self._file, self.creds = folder / KEYS_FILE, folder / CREDS_FOLDER

    @property
    def exists(self) -> bool:
        return self._file.is_file()

    def keys(self) -> Keys:
        """What is written now. Raises FileNotFoundError when nothing is; ValueError when it cannot be read, NewerKeys when
        it may not be written by this version."""
        keys = Keys.model_validate_json(self._file.read_text())
        if keys.version > (known := Keys.model_fields["version"].default):
            raise NewerKeys(
                f"{self._file} is of version {keys.version}, and this Baton knows {known}: use the newer Baton that wrote it"
            )
        return keys

    @property
    def ca(self) -> Path | None:
        """The file by which a broker of this instance is known; None: it has no certificate."""
        known = self.creds / CA_FILE
        return known if known.is_file() else None

    @property
    def changed_ns(self) -> int:
        """When the file was written last, on its disk's clock. Raises FileNotFoundError."""
        return self._file.stat().st_mtime_ns

    @property
    def teams(self) -> list[str]:
        return sorted(self.keys().teams) if self.exists else []

    @property
    def accounts(self) -> list[str]:
        """All that a broker is told of at run time: the core, nodes, teams."""
        keys = self.keys()
        finance = [] if keys.finance is None else [FINANCE]
        return [CORE, *finance, *(f"{NODE_MARK}{name}" for name in sorted(keys.nodes)), *sorted(keys.teams)]

    def users(self, team: str) -> list[str]:
        """Who of `team` has a credential: itself, and `<team>.<user>`. Raises NoCredential when there is no such team."""
        return sorted(keys_of.team(self.keys(), team).users)

    def ends(self, team: str) -> dict[str, GoodFor]:
        """The credentials of `team` that end by themselves, and when. Raises NoCredential for no such team."""
        return good_for(keys_of.team(self.keys(), team))

    # -------------------------------------------------------------------------------------------------------- credentials

    def operator(self) -> Path:
        return self._credential(CORE, OPERATOR, OPERATOR, self._of_operator)

    @property
    def _of_operator(self) -> Path:
        return self.creds / f"{OPERATOR}.creds"

    def service(self, name: str = SERVICES) -> Path:
        """Of a service; by default that of who may do everything. Each has a folder, which can be given to it alone."""
        return self._credential(CORE, name, f"service {name}", self._of_service(name), called=name)

    def _of_service(self, name: str) -> Path:
        return self.creds / SERVICES / name / _ONE

    def finance(self, user: str) -> Path:
        """Of somebody who reads all bills, and does nothing. Raises ValueError for a name that is not allowed."""
        known_as = f"{subjects.FINANCE}.{token(user)}"
        return self._credential(FINANCE, READER, known_as, self._of_finance(user))

    def finance_users(self) -> dict[str, Path]:
        """Who has a credential of finance -> its file."""
        owner = self.keys().finance
        names = sorted(name.partition(".")[2] for name in owner.users) if owner is not None else []
        return {name: self._of_finance(name) for name in names}

    def revoke_finance(self, user: str) -> None:
        """The credential is void once the broker is told of `$finance`. Raises NoCredential."""
        with self.changing() as keys:
            self._void(keys_of.account(keys, FINANCE), f"{subjects.FINANCE}.{user}")
            self._of_finance(user).unlink(missing_ok=True)

    def rotate_finance(self, user: str) -> Path:
        """A new credential in the old one's place, which is void once the broker is told of `$finance`. Raises NoCredential."""
        with self.changing() as keys:
            path, known_as = self._of_finance(user), f"{subjects.FINANCE}.{user}"
            self._replace(keys_of.account(keys, FINANCE), READER, known_as, path)
        return path

    def _of_finance(self, user: str) -> Path:
        return self.creds / "finance" / f"{user}.creds"

    def nodes(self, pool: str) -> Path:
        """Of agents that stand for every node of a pool: a simulated fleet."""
        return self._agent(checked("pool", pool))

    def node(self, pool: str, node: str) -> Path:
        """Of one node, which speaks for itself only."""
        return self._agent(f"{checked('pool', pool)}.{checked('node', node)}")

    def _agent(self, name: str) -> Path:
        folder = self.creds / "nodes" / name
        self._credential(CORE, LOGS if "." in name else POOL_LOGS, logs_of(name), folder / LOGS_CREDS, called=name)
        return self._credential(f"{NODE_MARK}{name}", NODE, name, folder / _ONE)

    def admins(self, team: str) -> list[str]:
        """Who of `team` may manage its users. Raises NoCredential when there is no such team."""
        owner = keys_of.team(self.keys(), team)
        return sorted(set(owner.admins) & owner.users.keys())

    def check_team(self, team: str) -> None:
        """Raises ValueError as `check_teams` and `check_numbers` when no team may be called so beside those that there are."""
        check_teams([team])
        if team not in (known := self.teams):
            check_numbers([*known, team])

    def team(self, name: str, *, admin: bool = False, lasts_s: int | None = None) -> Path:
        """Of a whole team, or of a user `<team>.<user>`; a new team gets an account. `admin`: a user who manages the others;
        what it had as a plain user is void then. `lasts_s`: how long one that is made now is good, by default until it is void.

        Raises ValueError as `check_team`, and for a user's name that is not allowed.
        """
        team, dot, user = name.partition(".")
        self.check_team(team)
        if dot:
            token(user)
        path = self.creds / f"{name}.creds"
        if admin:
            if not dot:
                raise ValueError(f"{name!r} is a whole team: an admin is one user, <team>.<user>")
            self._promote(team, name)
            return self._credential(team, ADMIN, name, path, lasts_s=lasts_s)
        return self._credential(team, USER if dot else TEAM, name, path, lasts_s=lasts_s)

    def _promote(self, team: str, name: str) -> None:
        with self.changing() as keys:
            owner = keys_of.account(keys, team, make=True)
            if name not in owner.admins:
                owner.admins.append(name)
                if name in owner.users:
                    self._void(owner, name)

    def sign(self, name: str, public_key: str, by: str) -> str:
        """The claim of the user `<team>.<user>` with a key that was made elsewhere; an earlier credential of that user is void
        once the broker is told. `by`: the admin who asks for it. Raises ValueError for another name, NoCredential for no team,
        or when that is no admin of it any more or the key is another one's, TooManyUsers."""
        team, dot, user = name.partition(".")
        if not dot:
            raise ValueError(f"{name!r} is no user of a team: write <team>.<user>")
        token(user)
        with self.changing() as keys:
            owner = keys_of.team(keys, team)
            if by not in set(owner.admins) & owner.users.keys():  # void since it was looked at, by another process
                raise NoCredential(f"{by} is no admin of {team}")
            keys_of.check_own_key(owner, name, public_key)
            if name in owner.users:
                self._void(owner, name)
            keys_of.check_room(owner, team)
            said = claims.user(owner.role(USER), owner.public, public_key, name, issued_s=owner.tick(self.now()))
            owner.issue(name, public_key, owner.issued_s)
            owner.elsewhere = sorted({*owner.elsewhere, name})
            (self.creds / f"{name}.creds").unlink(missing_ok=True)
        return said

    def check_signing(self, name: str, public_key: str) -> None:
        """Raises what `sign` would: TooManyUsers when nothing more can be signed for the team, NoCredential when there is none,
        or when the key is another one's."""
        team = name.partition(".")[0]
        owner = keys_of.team(self.keys(), team)
        keys_of.check_room(owner, team)
        keys_of.check_own_key(owner, name, public_key)

    def _credential(
        self, account: str, role: str, known_as: str, path: Path, called: str = "", lasts_s: int | None = None
    ) -> Path:
        """The file of a credential; made when it is not there, is void, or has ended."""
        with self.changing() as keys:
            owner = keys_of.account(keys, account, make=True)
            made_elsewhere = known_as in owner.elsewhere and known_as in owner.users
            ended = (ends_s := owner.ends_s(known_as)) is not None and ends_s <= self.now()
            if known_as not in owner.users or ended or not (path.is_file() or made_elsewhere):
                if not account.startswith((CORE, NODE_MARK)):
                    keys_of.check_revoked(owner)
                lasts_s = owner.lasts.get(known_as) if lasts_s is None else lasts_s
                self._issue(owner, role, known_as, path, called or known_as, lasts_s)
        if self.ca is not None and not (beside := path.with_name(CA_FILE)).is_file():
            beside.write_text(self.ca.read_text())  # one that was made after the certificate knows the broker, too
        return path

    def _issue(
        self, owner: AccountKeys, role: str, known_as: str, path: Path, called: str, lasts_s: int | None = None
    ) -> None:
        key = new_key(KeyKind.USER)
        issued_s = owner.tick(self.now())
        owner.issue(known_as, key.public, issued_s)
        if lasts_s is not None:
            owner.lasts[known_as] = lasts_s
        ends_s = owner.ends_s(known_as)
        said = claims.user(owner.role(role), owner.public, key.public, called, issued_s=issued_s, expires_s=ends_s)
        owner.elsewhere = [one for one in owner.elsewhere if one != known_as]
        self._private(path.parent)
        write_private(path, claims.credentials(said, key))

    def _replace(
        self, owner: AccountKeys, role: str, known_as: str, path: Path, called: str = "", lasts_s: int | None = None
    ) -> None:
        """A new credential in the old one's place. The file comes first and the keys at the end of the change: who is cut off
        between the two has a file that is good, and never none."""
        lasts_s = owner.lasts.get(known_as) if lasts_s is None else lasts_s
        self._void(owner, known_as)
        self._issue(owner, role, known_as, path, called or known_as, lasts_s)

    def rotate(self, name: str, *, lasts_s: int | None = None) -> Path:
        """A new credential for a team, or a user of one, in its file's place; the old one is void once the broker is told.
        `lasts_s`: how long the new one is good; by default as long as the old one was.

        Raises NoCredential when there is none of that name, TooManyUsers.
        """
        with self.changing() as keys:
            owner = keys_of.team(keys, name.partition(".")[0])
            if name != owner.oldest:
                keys_of.check_revoked(owner)
            path = self.creds / f"{name}.creds"
            role = ADMIN if name in owner.admins else USER if "." in name else TEAM
            self._replace(owner, role, name, path, lasts_s=lasts_s)
        return path

    def revoke(self, name: str) -> None:
        """The credential of a user, or all of a team, are void once the broker is told. Raises NoCredential as `rotate`."""
        with self.changing() as keys:
            owner = keys_of.team(keys, name.partition(".")[0])
            gone = [name] if "." in name else sorted(owner.users)
            if "." in name:
                self._void(owner, name)
                owner.admins = [one for one in owner.admins if one != name]
            else:
                owner.admins = []
                owner.users, owner.since, owner.lasts, owner.revoked = {}, {}, {}, {"*": owner.tick(self.now())}
            for each in gone:
                (self.creds / f"{each}.creds").unlink(missing_ok=True)

    def keep_out(self, team: str, least_s: int, most_s: int) -> int:
        """Nobody of the team, or of finance, may be connected for so many seconds, once the broker is told: `least_s`, and each
        further time within `most_s` twice as long as before, up to that. Raises NoCredential."""
        with self.changing() as keys:
            owner, now_s = keys_of.account(keys, team), int(self.now())
            again = owner.out_for_s and now_s - owner.out_until_s < most_s
            owner.out_for_s = min(most_s, 2 * owner.out_for_s) if again else least_s
            owner.out_until_s, owner.let_in = now_s + owner.out_for_s, False
        return owner.out_for_s

    def let_in(self, team: str) -> None:
        """Ends what `keep_out` began, also before its time, once the broker is told. Raises NotKeptOut."""
        with self.changing() as keys:
            if team not in (out := keys.kept_out):
                known = f"there are {', '.join(sorted(out))}" if out else "no team is"
                raise NotKeptOut(f"team {team!r} is not kept out; {known}")
            owner = keys_of.account(keys, team)
            owner.out_until_s, owner.let_in = min(owner.out_until_s, int(self.now())), True

    def is_over(self, until_s: int) -> bool:
        return until_s <= self.now()

    def revoke_node(self, pool: str, node: str = "") -> list[str]:
        """The credentials of a node, or without one those of the agents of a whole pool; the accounts that are to be told.
        Raises NoCredential."""
        name = f"{pool}.{node}" if node else pool
        with self.changing() as keys:
            self._void(keys_of.agents(keys, pool, node), name)
            self._void(keys.core, logs_of(name))
            for file in (_ONE, LOGS_CREDS):
                (self.creds / "nodes" / name / file).unlink(missing_ok=True)
        return self.node_accounts(pool, node)

    @staticmethod
    def node_accounts(pool: str, node: str = "") -> list[str]:
        """Those that a broker is told when a credential of a node, or of the agents of a whole pool, is another."""
        return [f"{NODE_MARK}{f'{pool}.{node}' if node else pool}", CORE]

    def rotate_node(self, pool: str, node: str = "") -> list[str]:
        """New credentials in the place of those that `revoke_node` makes void; the accounts that are to be told. Raises
        NoCredential."""
        name = f"{pool}.{node}" if node else pool
        folder, logs = self.creds / "nodes" / name, LOGS if node else POOL_LOGS
        with self.changing() as keys:
            self._replace(keys_of.agents(keys, pool, node), NODE, name, folder / _ONE)
            self._replace(keys.core, logs, logs_of(name), folder / LOGS_CREDS, called=name)
        return self.node_accounts(pool, node)

    def rotate_own(self, name: str) -> Path:
        """A new credential for the operator or a service, in its file's place; the old one is void once the broker is told of
        `$baton`. Raises NoCredential."""
        known_as, path = (name, self._of_operator) if name == OPERATOR else (f"service {name}", self._of_service(name))
        with self.changing() as keys:
            self._replace(keys.core, name, known_as, path, called=name)
        return path

    def check_user(self, name: str) -> None:
        """Raises NoCredential when the user `<team>.<user>` has none."""
        keys_of.check_user(keys_of.team(self.keys(), name.partition(".")[0]), name)

    def _void(self, owner: AccountKeys, name: str) -> None:
        keys_of.check_user(owner, name)
        owner.void(name, owner.tick(self.now()))

    # ----------------------------------------------------------------------------------------------------------- the file

    @contextmanager
    def changing(self) -> Iterator[Keys]:
        """The keys, for a change: written at the end unless the block failed; made when there are none."""
        self._private(self.folder)
        with open_lock(self.folder / f"{KEYS_FILE}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = self.keys() if self.exists else new_keys()
            before = keys.model_dump() if self.exists else None
            yield keys
            if before is None:
                People(self.folder).begin()
            if (after := keys.model_dump()) != before:
                write_private(self._file, json.dumps(after, indent=1) + "\n", durable=True)

    def _private(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def logs_of(name: str) -> str:
    """Under which name the second credential of an agent is known."""
    return f"logs {name}" if "." in name else f"logs of all of {name}"


def good_for(owner: AccountKeys) -> dict[str, GoodFor]:
    """Its credentials that end by themselves, and when."""
    return {
        name: GoodFor(at_s - owner.lasts[name], at_s)
        for name in sorted(owner.users)
        if (at_s := owner.ends_s(name)) is not None
    }
