"""Sends events of `baton bill push` over HTTP, and records what was sent.

An answer is one of four: accepted (or known already); temporary failure (408, 425, 429, 5xx, none: retried after
`Retry-After` or with growing pauses); the event is refused (400, 413, 422 and the like: a dead letter, with the
reason); the configuration is wrong (a credential, an address, a redirect: the command fails, and nothing is skipped).

Progress is stored in a file after each answer, a dead letter before it. So a crash at any moment repeats at most one
event, under the same id. With the progress goes a hash over all rows so far: in a ledger that was restored from a
backup of before, other rows have these places, and without it they would count as sent.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from libs.cli.exits import UsageFault
from libs.cli.files import read_text
from libs.cli.output import hint
from libs.client.errors import Failed
from libs.core.billing.charges import Charge
from libs.core.billing.usage_events import MAPPINGS, HttpMessage, UsageEvent, event_of, known_already, too_late
from libs.core.state.moments import text_of
from libs.ports.private_files import write_private

FIRST_S, LONGEST_S = 0.5, 30.0
ASKED_S = 3600.0
"""The longest `Retry-After` that is honoured."""
_ANSWER_BYTES = 65_536
_NOT_NOW = (408, 425, 429)
_SET_UP = (401, 402, 403, 404, 405, 407, 410, 421, 426)


@dataclass(slots=True)
class Pushed:
    """Progress: `done` rows of the ledger are finished. `rows`: the hash over these; "": of a release without it."""

    pool: str
    to: str
    endpoint: str
    done: int = 0
    sent: int = 0
    late: int = 0
    dead: int = 0
    rows: str = ""

    def check_reached(self, rows: int) -> None:
        """After all `rows` that the ledger has. Raises Failed when more are finished."""
        if rows < self.done:
            raise self.another(f"it has {rows} rows")

    def another(self, how: str) -> Failed:
        return Failed(
            f"the ledger of pool {self.pool} is not the one of which {self.done} rows were sent",
            f"{how}: it was restored from a backup of before, or is another one",
            f"nothing was sent. With a new --state all is sent once more, and what {self.to} knows by its id counts once; "
            "what was sent of the ledger that is gone stays there",
        )


@dataclass(slots=True)
class Outbound:
    """The endpoint. `give_up_s`: how long to retry one event; None: until it is accepted. `trying`: called with the
    reason of a retry, and with None when it is over."""

    endpoint: str
    token: str
    give_up_s: float | None
    trying: Callable[[str | None], None] = lambda why: None

    def post(self, message: HttpMessage) -> str:
        """Posts until the answer is final: "" when accepted, else the reason for refusal. Raises Failed when that takes
        too long, and when the endpoint or credential is wrong."""
        began, wait_s = time.monotonic(), FIRST_S
        while True:
            status, why, text, asked_s = _answer(self.endpoint, message, self.token, self.give_up_s)
            if status is not None and 400 <= status < 500 and status not in (*_NOT_NOW, *_SET_UP):
                self.trying(None)
                return f"{why} {text}".strip()
            if not why:
                self.trying(None)
                return ""
            set_up = status is not None and (status in _SET_UP or status < 400)
            pause_s = max(wait_s, asked_s)
            if self.give_up_s is not None:
                if set_up:
                    raise Failed(f"{self.endpoint} refuses all events: {why}", text, "mend it, then push again")
                if time.monotonic() - began + pause_s > self.give_up_s:
                    what = f"{self.endpoint} has not taken an event within {self.give_up_s:g} s"
                    raise Failed(what, why, "push again later: it goes on there")
            self.trying(why)
            time.sleep(pause_s)
            wait_s = min(LONGEST_S, 2 * wait_s)


def push_all(
    found: Iterable[Charge],
    pushed: Pushed,
    *,
    customers: dict[str, str],
    post: Callable[[HttpMessage], str],
    bury: Callable[[UsageEvent, HttpMessage, str], None],
    save: Callable[[], None],
    now_us: Callable[[], int],
) -> None:
    """Posts all unfinished rows in ledger order. Raises what `post` raises, and Failed when the finished rows are not those of
    this ledger; finished rows are saved."""
    rows, count = "", 0
    for number, charge in enumerate(found):
        rows, count = _with_row(rows, charge), number + 1
        if number < pushed.done:
            if count == pushed.done and pushed.rows not in ("", rows):
                raise pushed.another(f"its row {count} is another one, or one before it")
            if count == pushed.done:
                pushed.rows = rows
            continue
        event = event_of(charge, pushed.pool)
        if event is not None and too_late(pushed.to, event, now_us()):
            pushed.late += 1
        elif event is not None:
            message = MAPPINGS[pushed.to](event, customers.get(event.team, event.team))
            why = post(message)
            if why:
                bury(event, message, why)
                pushed.dead += 1
            else:
                pushed.sent += 1
        pushed.done, pushed.rows = count, rows
        if event is not None:
            save()
    pushed.check_reached(count)


def _with_row(before: str, charge: Charge) -> str:
    """The hash over rows, with one more. What a later seal or release says otherwise of a row is not in it."""
    use, amount = charge.use, charge.amount
    row = (
        f"{charge.posted_seq} {use.job_id}.{use.attempt} {use.device} {amount.hour} {amount.units} {charge.version} "
        f"{charge.correction}"
    )
    return sha256(f"{before} {row}".encode()).hexdigest()


class DeadLetters:
    """Refused events, one per line: id, team, hour, reason, and the posted body. Written before the event counts as
    finished."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._whole = False

    def bury(self, event: UsageEvent, message: HttpMessage, why: str) -> None:
        """Raises OSError."""
        if not self._whole and self.path.exists():
            _cut_torn(self.path)
        self._whole = True
        letter = {
            "id": event.id, "team": event.team, "hour": text_of(event.at_us), "why": why, "path": message.path,
            "content_type": message.content_type, "body": message.body.decode(),
        }  # fmt: skip
        with self.path.open("ab") as out:
            out.write(json.dumps(letter, ensure_ascii=False).encode() + b"\n")
            out.flush()
            os.fsync(out.fileno())

    def again(self, post: Callable[[HttpMessage], str]) -> tuple[int, int]:
        """Posts each once more; returns (accepted, still refused). The latter stay. Raises what `post` raises, and then
        all stay."""
        taken, seen = 0, set[str]()
        made = self.path.with_name(self.path.name + ".part")
        with made.open("wb") as out:
            for letter in self:
                if letter["id"] in seen:
                    continue
                seen.add(letter["id"])
                why = post(HttpMessage(letter["path"], letter["content_type"], letter["body"].encode()))
                if why:
                    out.write(json.dumps(letter | {"why": why}, ensure_ascii=False).encode() + b"\n")
                else:
                    taken += 1
            out.flush()
            os.fsync(out.fileno())
        made.replace(self.path)
        return taken, len(seen) - taken

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Raises UsageFault for a damaged line."""
        if not self.path.exists():
            return
        _cut_torn(self.path)
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    letter = json.loads(line)
                    yield {
                        name: str(letter[name])
                        for name in ("id", "team", "hour", "why", "path", "content_type", "body")
                    }
                except (ValueError, KeyError, TypeError) as error:
                    raise UsageFault(
                        f"{self.path}, line {number}: no dead letter ({error!r}); mend or remove it"
                    ) from None


def load(path: Path, fresh: Pushed) -> Pushed:
    """The saved progress, or `fresh`. Raises UsageFault for a file of something else."""
    try:
        saved = json.loads(read_text(path))
        found = Pushed(**saved)
    except FileNotFoundError:
        return fresh
    except (OSError, ValueError, TypeError) as error:
        raise UsageFault(f"--state {path}: not what was written there ({error!r}); name another file") from None
    if (found.pool, found.to, found.endpoint) != (fresh.pool, fresh.to, fresh.endpoint):
        raise UsageFault(
            f"--state {path}: is of pool {found.pool} to {found.to} at {found.endpoint}; name another file for each"
        )
    return found


def save(path: Path, pushed: Pushed) -> None:
    write_private(path, json.dumps({name: getattr(pushed, name) for name in Pushed.__slots__}), durable=True)


def seconds_of(text: str, now: datetime) -> float:
    """Parses `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3); 0 for anything else."""
    if text.isascii() and text.isdigit():
        return min(ASKED_S, float(text[:9]))
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return min(ASKED_S, max(0.0, (moment - now).total_seconds()))


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects: a credential goes only to the configured endpoint."""

    def redirect_request(self, *_: object) -> None:
        return None


def _answer(
    endpoint: str, message: HttpMessage, token: str, give_up_s: float | None
) -> tuple[int | None, str, str, float]:
    """(status, reason, body, requested pause). Reason "": accepted."""
    headers = {"content-type": message.content_type} | ({"authorization": f"Bearer {token}"} if token else {})
    request = Request(endpoint.rstrip("/") + message.path, message.body, headers, method="POST")
    timeout_s = LONGEST_S if give_up_s is None else max(1.0, min(LONGEST_S, give_up_s))
    try:
        with build_opener(_NoRedirect).open(request, timeout=timeout_s):
            return None, "", "", 0.0
    except HTTPError as error:
        try:
            body = error.read(_ANSWER_BYTES)
        except (HTTPException, OSError):
            body = b""
        if known_already(error.code, body):
            return None, "", "", 0.0
        asked_s = seconds_of(error.headers.get("Retry-After", ""), datetime.now(UTC))
        return error.code, f"{error.code} {error.reason}", body[:200].decode(errors="replace"), asked_s
    except (URLError, HTTPException, OSError) as error:
        return None, str(error) or type(error).__name__, "", 0.0


def _cut_torn(path: Path) -> None:
    """Removes an incomplete last line: its event was not finished, and comes again."""
    with path.open("r+b") as file:
        size = at = file.seek(0, os.SEEK_END)
        while at:
            step = min(4096, at)
            at -= step
            file.seek(at)
            found = file.read(step).rfind(b"\n")
            if found >= 0:
                at += found + 1
                break
        if at != size:
            hint(f"{path}: its last line was cut off, and is taken off")
            file.truncate(at)
