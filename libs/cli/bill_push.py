"""`baton bill push`: use as events to a billing system of others, each counted once, however often it is sent.

What was sent is remembered in a file, after each answer: who is killed sends the last event again, under the same id. An answer
that may change (429, 5xx, none) is waited for, longer each time; one that will not (another 4xx) ends the command, and the next
one begins with that event.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Annotated
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import typer

from libs.cli.bill_statement import centres_of
from libs.cli.exits import UsageFault
from libs.cli.options import Pool, Url
from libs.cli.output import hint, say
from libs.client.errors import Failed
from libs.core.billing.charges import Charge, charges
from libs.core.billing.usage_events import MAPPINGS, HttpMessage, event_of, known_already, too_late

_FIRST_S, _LONGEST_S = 0.5, 30.0
_ANSWER_BYTES = 65_536


@dataclass(slots=True)
class Pushed:
    """How far it is: `done` rows of the ledger are dealt with."""

    pool: str
    to: str
    endpoint: str
    done: int = 0
    sent: int = 0
    late: int = 0


class _NoRedirect(HTTPRedirectHandler):
    """A credential goes to the endpoint that was named, and nowhere else."""

    def redirect_request(self, *_: object) -> None:
        return None


def push(
    *,
    to: Annotated[str, typer.Option("--to", help="openmeter, lago or stripe.")],
    endpoint: Annotated[str, typer.Option("--endpoint", help="Its address, e.g. https://openmeter.example.")],
    state: Annotated[Path, typer.Option("--state", help="Where it is remembered what was sent.")],
    token_env: Annotated[
        str, typer.Option("--token-env", help="The variable that has the credential.")
    ] = "BATON_METERING_TOKEN",
    customers: Annotated[
        Path | None, typer.Option("--customers", help="YAML, `team: customer`. Without it a team is called as here.")
    ] = None,
    give_up_s: Annotated[float, typer.Option("--give-up", min=0, help="How long one event is tried, s.")] = 300.0,
    ledger: Annotated[
        list[Path] | None, typer.Option("--ledger", help="A file of `baton ledger export`; no server is asked.")
    ] = None,
    pool: Pool = None,
    url: Url = None,
) -> None:
    """Send use that was posted since the last time to OpenMeter, Lago or Stripe."""
    from libs.cli.bill_files import ledger_of

    if to not in MAPPINGS:
        raise UsageFault(f"--to {to}: not known; use {', '.join(MAPPINGS)}")
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
        raise UsageFault(f"--endpoint {endpoint}: no address of HTTP; write https://HOST")
    names = centres_of(customers) if customers is not None else {}
    token = os.environ.get(token_env, "")
    with ledger_of(ledger, pool, url) as source:
        pushed = _load(state, Pushed(source.pool, to, endpoint))

        def post(message: HttpMessage) -> None:
            patiently_post(endpoint, message, token, give_up_s)

        try:
            found = charges(source, source.closed)
            push_all(
                found, pushed, customers=names, post=post, save=lambda: _save(state, pushed), now_us=source.wall_us
            )
        finally:
            _save(state, pushed)
    if pushed.late:
        hint(f"{pushed.late} events are older than {to} takes and were not sent: bill them by an export")
    say(f"{pushed.sent} events sent, {pushed.done} rows done")


def push_all(
    found: Iterable[Charge],
    pushed: Pushed,
    *,
    customers: dict[str, str],
    post: Callable[[HttpMessage], None],
    save: Callable[[], None],
    now_us: int,
) -> None:
    """Posts what is not done yet, in the order of the ledger. Raises what `post` raises; what was done before is saved."""
    for number, charge in enumerate(found):
        if number < pushed.done:
            continue
        event = event_of(charge, pushed.pool)
        if event is not None and too_late(pushed.to, event, now_us):
            pushed.late += 1
        elif event is not None:
            post(MAPPINGS[pushed.to](event, customers.get(event.team, event.team)))
            pushed.sent += 1
        pushed.done = number + 1
        if event is not None:
            save()


def patiently_post(endpoint: str, message: HttpMessage, token: str, give_up_s: float) -> None:
    """Posts until it is taken. Raises Failed for an answer that will not change, and when it takes too long."""
    opener = build_opener(_NoRedirect)
    headers = {"content-type": message.content_type} | ({"authorization": f"Bearer {token}"} if token else {})
    deadline, wait_s, why = time.monotonic() + give_up_s, _FIRST_S, ""
    while True:
        asked_s = 0.0
        request = Request(endpoint.rstrip("/") + message.path, message.body, headers, method="POST")
        try:
            with opener.open(request, timeout=max(1.0, min(30.0, give_up_s))):
                return
        except HTTPError as error:
            body = error.read(_ANSWER_BYTES)
            if known_already(error.code, body):
                return
            why = f"{error.code} {error.reason}"
            if error.code != 429 and error.code < 500:
                text = body[:200].decode(errors="replace")
                raise Failed(f"{endpoint} refuses an event: {why}", text, "mend it, then push again") from None
            asked_s = _seconds(error.headers.get("Retry-After", ""))
        except (URLError, HTTPException, OSError) as error:
            why = str(error)
        pause_s = max(wait_s, asked_s)
        if time.monotonic() + pause_s > deadline:
            what = f"{endpoint} has not taken an event within {give_up_s:g} s"
            raise Failed(what, why, "push again later: it goes on there")
        time.sleep(pause_s)
        wait_s = min(_LONGEST_S, 2 * wait_s)


def _seconds(text: str) -> float:
    return float(text) if text.isdigit() and len(text) < 6 else 0.0


def _load(path: Path, fresh: Pushed) -> Pushed:
    try:
        told = json.loads(path.read_text("utf-8"))
        found = Pushed(**told)
    except FileNotFoundError:
        return fresh
    except (OSError, ValueError, TypeError) as error:
        raise UsageFault(f"--state {path}: not what was written there ({error!r}); name another file") from None
    if (found.pool, found.to, found.endpoint) != (fresh.pool, fresh.to, fresh.endpoint):
        raise UsageFault(
            f"--state {path}: is of pool {found.pool} to {found.to} at {found.endpoint}; name another file for each"
        )
    return found


def _save(path: Path, pushed: Pushed) -> None:
    made = path.with_name(path.name + ".part")
    made.write_text(json.dumps({name: getattr(pushed, name) for name in Pushed.__slots__}), "utf-8")
    with made.open("rb") as file:
        os.fsync(file.fileno())
    made.replace(path)
