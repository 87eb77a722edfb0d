"""`python -m benchmarks.crowd TEAM`: one team's crowd, in a process of its own, so that it does not hold up who measures.

    raw      plain JSON, encoded before, published without waiting for any acknowledgement: an attacker, as cheap as can be
    users    as raw, each request as another user of the team: what waits of a user is bounded, these are not
    client   `libs.client.submit_many`, which waits until what it sent is stored: a team with a large batch
    control  as raw, to a stream of that broker that nobody reads

Where the broker is, and the credential, are in the environment (BATON_NATS_URL, BATON_NATS_CREDS). The crowd keeps its rate
whatever becomes of the requests. The last line of what it prints is how many were sent.
"""

import argparse
import asyncio
import json
import os
import time
import uuid
from pathlib import Path

from benchmarks.crowds import noop
from libs.bus.connect import connect as connect_bus
from libs.bus.creds import Address
from libs.client import connect
from schemas import subjects

_STEP_S = 0.01
CONTROL = "benchmarks.control"
"""Where the control's messages go, beside Baton's subjects."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("team")
    parser.add_argument("--mode", choices=("raw", "users", "client", "control"), default="raw")
    parser.add_argument("--rate", type=float, required=True, help="requests/s")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    print(asyncio.run(_client(options) if options.mode == "client" else _raw(options)))


def _address() -> Address:
    creds = os.environ.get("BATON_NATS_CREDS", "")
    return Address(os.environ["BATON_NATS_URL"], Path(creds) if creds else None)


async def _raw(options: argparse.Namespace) -> int:
    body = json.dumps({"client_key": "KEY", "job": noop().model_dump(mode="json", exclude_defaults=True)}).encode()
    before, after = body.split(b"KEY")
    subject = CONTROL if options.mode == "control" else subjects.submit(options.team, "crowd")
    name = uuid.uuid4().hex
    nats = await connect_bus(_address(), name="benchmark-crowd")
    began, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < options.seconds:
        for number in range(sent, int(elapsed * options.rate)):
            if options.mode == "users":
                subject = subjects.submit(options.team, f"u{number}")
            await nats.publish(subject, b"%s%s-%d%s" % (before, name.encode(), number, after))
            sent += 1
        await asyncio.sleep(_STEP_S)
    await nats.drain()
    return sent


async def _client(options: argparse.Namespace) -> int:
    async with await connect(_address(), options.team) as client:
        began, sent = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < options.seconds:
            if (due := int(elapsed * options.rate) - sent) > 0:
                await client.submit_many([noop()] * due, give_up_s=600)
                sent += due
            await asyncio.sleep(_STEP_S)
    return sent


if __name__ == "__main__":
    main()
