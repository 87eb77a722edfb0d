"""Message ids that nobody else can guess.

The broker drops a second message of a stream with the same `Nats-Msg-Id` within some minutes, whoever sent the first. Ids
follow from their causes, so that what is sent twice is stored once; who knows the cause could use the id up before. So what
goes over the wire is the id and a secret of the sender's credential, hashed: processes with one credential have the same ids.
"""

import hashlib

from nats.aio.client import Client

from libs.bus.messages import Outgoing
from schemas.envelope import MSG_ID
from schemas.subjects import services_alone


def sent_headers(nats: Client, item: Outgoing) -> dict[str, str]:
    """The headers of `item` as `nats` sends them."""
    headers = dict(item.headers)
    secret: str = getattr(nats, "secret", "")
    if secret and MSG_ID in headers and not services_alone(item.subject):
        headers[MSG_ID] = hashlib.sha256(f"{secret}\x1f{headers[MSG_ID]}".encode()).hexdigest()[:32]
    return headers
