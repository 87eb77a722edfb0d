"""A team's secrets, as its client sees them: set, listed, removed, never read."""

from collections.abc import Collection

from nats.aio.client import Client

from libs.bus.boxes import ForVault, close_box, encoded
from libs.client.asking import ask
from libs.client.errors import Invalid, NotFound
from libs.client.sending import valid
from libs.client.where import Place
from schemas import subjects
from schemas.jobs import JobSpec
from schemas.secrets import (
    VALUE_BYTES,
    SecretInfo,
    SecretList,
    SecretListQuery,
    SecretRekey,
    SecretRekeyed,
    SecretRemove,
    SecretRemoved,
    SecretSet,
)

_SEALED_TO_AN_OLD_KEY = "key"


async def set_secret(nats: Client, place: Place, name: str, value: bytes) -> SecretInfo:
    """Seals the value to vault's key and sends it. Raises Invalid, and what `ask` raises."""
    if place.team == subjects.OPERATOR:
        raise Invalid("the operator has no secrets", fix="speak as a team: set BATON_TEAM, or use --team")
    if len(value) > VALUE_BYTES:
        raise Invalid(
            f"the value has {len(value)} bytes, and a secret at most {VALUE_BYTES}", fix="keep large data elsewhere"
        )
    for last in (False, True):
        held = await list_secrets(nats, place)
        key = held.key
        valid(SecretSet, name=name, key=key, sealed="AAAA")  # the name, before anything is sealed for it
        sealed = close_box(key, ForVault(team=place.team, name=name, value=encoded(value)))
        asked = SecretSet(name=name, key=key, sealed=sealed)
        if held.removed is not None:  # a vault of before takes no word of what was seen
            newest = held.version_of(name)
            asked = asked.model_copy(update={"replaces": newest, "removed": None if newest else held.removed})
        try:
            info: SecretInfo = await ask(nats, "secret.set", place, asked)
            return info
        except Invalid as e:
            if last or not any(reason.field == _SEALED_TO_AN_OLD_KEY for reason in e.reasons):
                raise  # else the master key was changed in between
    raise AssertionError("unreachable")


async def list_secrets(nats: Client, place: Place, team: str | None = None) -> SecretList:
    """Names, versions and dates. `team`: operators only."""
    found: SecretList = await ask(nats, "secret.list", place, valid(SecretListQuery, team=team))
    return found


async def remove_secrets(nats: Client, place: Place, name: str | None, team: str | None = None) -> tuple[str, ...]:
    """What is gone now. Without a name, operators only: all of the team's. What is set meanwhile stays, and Failed says so.
    Raises NotFound."""
    valid(SecretRemove, name=name, team=team)  # before anybody is asked
    held = await list_secrets(nats, place, team)
    asked, newest = SecretRemove(name=name, team=team), held.version_of(name) if name else 0
    if held.removed is not None:  # a vault of before takes no word of what was seen
        asked = asked.model_copy(update={"removes": newest} if name else {"revision": held.revision})
    try:
        if name and not newest:
            raise NotFound("")
        gone: SecretRemoved = await ask(nats, "secret.remove", place, asked)
    except NotFound:
        whose = team or place.team
        raise NotFound(
            f"team {whose} has no secret {name}" if name else f"team {whose} has no secrets",
            fix="`baton secret list` shows those that there are",
        ) from None
    return gone.names


async def rekey(nats: Client, place: Place) -> SecretRekeyed:
    """Operators only: another master key."""
    done: SecretRekeyed = await ask(nats, "secret.rekey", place, SecretRekey(), timeout_s=120.0)
    return done


async def check_named(nats: Client, place: Place, specs: Collection[JobSpec]) -> None:
    """Raises Invalid when one of the specs names a secret that the team does not have. Without names nothing is asked."""
    named = {use.secret for spec in specs for use in spec.secrets}
    if not named:
        return
    known = {info.name for info in (await list_secrets(nats, place)).secrets}
    if missing := sorted(named - known):
        raise Invalid(
            f"team {place.team} has no secret {', '.join(missing)}",
            f"it has: {', '.join(sorted(known)) or 'none'}",
            f"`baton secret set {missing[0]}`, then submit again",
        )
