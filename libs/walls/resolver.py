"""Pushes account permissions and revocations to a running broker: they take effect at once, without a reload."""

import json
from collections.abc import Sequence

from nats.errors import Error as NatsError

from libs.bus.connect import Address, close, connect
from libs.walls import broker_claims
from libs.walls.accounts import CLAIMS_UPDATE
from libs.walls.keyring import Keyring

_ANSWER_S = 5.0


class NotTold(RuntimeError):
    """The broker has not taken the change; the text says why. Telling it again does no harm."""


async def tell(url: str, keyring: Keyring, accounts: Sequence[str], *, wait_s: float = 10.0) -> None:
    """Returns when a broker at `url` has stored the present claims of `accounts` (names); servers of a cluster pass it on.

    Users that are revoked now are disconnected by it. Raises BusUnavailable, and NotTold.
    """
    address = Address(url, broker_claims.claims_credential(keyring), ca=keyring.ca)
    nats = await connect(address, name="baton-team", wait_s=wait_s)
    try:
        told = broker_claims.account_claims(keyring, accounts)
        for account, (_, claim) in zip(accounts, told, strict=True):
            answer = json.loads((await nats.request(CLAIMS_UPDATE, claim.encode(), timeout=_ANSWER_S)).data)
            if "error" in answer:
                raise NotTold(f"the broker refused the account {account!r}: {answer['error']}")
    except NatsError as e:
        raise NotTold(f"the broker did not answer: {e!r}; run the same command again") from e
    finally:
        await close(nats)
