"""`baton bill push`: sends use as events to an external billing system, where each counts once, however often it is
sent.

With `--follow` it keeps running: it copies the ledger's new records, and sends the events that follow. The fold
continues where it is, so each round costs as much as the new records.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from nats.errors import Error as NatsError

from libs.cli.bill_centres import centres_of
from libs.cli.bill_events import DeadLetters, Outbound, Pushed, load, push_all, save
from libs.cli.bill_files import ledger_of
from libs.cli.exits import UsageFault
from libs.cli.files import check_target, scratch_folder
from libs.cli.options import ArchiveFolder, Pool, Url
from libs.cli.output import hint, say
from libs.cli.session import run
from libs.client import Baton
from libs.client.errors import ClientError
from libs.core.billing.charges import Charge, charges
from libs.core.billing.usage_events import MAPPINGS
from libs.ledger.records import FiledLedger
from schemas.subjects import OPERATOR

_FILES = 64
"""This many copied files are merged into one."""


def push(
    *,
    to: Annotated[str, typer.Option("--to", help="Which system: openmeter, lago or stripe.")],
    endpoint: Annotated[str, typer.Option("--endpoint", help="Its address, e.g. https://openmeter.example.")],
    state: Annotated[
        Path, typer.Option("--state", help="Where it is remembered what was sent; what was refused is in FILE.dead.")
    ],
    token_env: Annotated[
        str, typer.Option("--token-env", help="The variable that has the credential.")
    ] = "BATON_METERING_TOKEN",
    customers: Annotated[
        Path | None, typer.Option("--customers", help="YAML, `team: customer`. Without it a team is called as here.")
    ] = None,
    give_up_s: Annotated[float, typer.Option("--give-up", min=0, help="How long one event is tried, s.")] = 300.0,
    follow: Annotated[bool, typer.Option("--follow", help="Stay, and send what comes; nothing is given up.")] = False,
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="With --follow: how often to look, s.")] = 15.0,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=65535, help="With --follow: Prometheus on 127.0.0.1.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="First send what was refused once more.")] = False,
    ledger: Annotated[
        list[Path] | None, typer.Option("--ledger", help="A file of `baton ledger export`; no server is asked.")
    ] = None,
    archive: ArchiveFolder = None,
    pool: Pool = None,
    url: Url = None,
) -> None:
    """Send use that was posted since the last time to OpenMeter, Lago or Stripe."""
    if to not in MAPPINGS:
        raise UsageFault(f"--to {to}: not known; use {', '.join(MAPPINGS)}")
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
        raise UsageFault(f"--endpoint {endpoint}: no address of HTTP; write https://HOST")
    if ledger and follow:
        raise UsageFault("--follow: a file does not grow; leave out --ledger, or --follow")
    check_target(state)
    names = centres_of(customers) if customers is not None else {}
    dead = DeadLetters(state.with_name(state.name + ".dead"))
    with ledger_of(ledger, pool, url, archive) as source:
        pushed = load(state, Pushed(source.pool, to, endpoint))
        figures = PushFigures(source, pushed)
        out = Outbound(endpoint, os.environ.get(token_env, ""), None if follow else give_up_s, figures.trying)
        if follow and metrics_port is not None:
            figures.serve(metrics_port)
        if again:
            taken, left = dead.again(out.post)
            say(f"{taken} of {taken + left} that were refused are taken now")
        with _rows(source, pool, url, every_s if follow else None, figures.idle) as found:
            try:
                push_all(
                    figures.seen(found), pushed, customers=names, post=out.post, bury=dead.bury,
                    save=lambda: save(state, pushed), now_us=lambda: source.wall_us,
                )  # fmt: skip
            finally:
                save(state, pushed)
    if pushed.late:
        hint(f"{pushed.late} events are older than {to} takes and were not sent: bill them by an export")
    if pushed.dead:
        hint(f"{pushed.dead} events were refused, with the reason in {dead.path}: mend it, then push --again")
    say(f"{pushed.sent} events sent, {pushed.done} rows done")


class PushFigures:
    """How far a push is behind, for people and Prometheus."""

    def __init__(self, source: FiledLedger, pushed: Pushed) -> None:
        self._source, self._pushed = source, pushed
        self._seq = self._rows = 0
        self._since: float | None = None
        self._why = ""

    def seen(self, found: Iterator[Charge]) -> Iterator[Charge]:
        for charge in found:
            self._seq = charge.posted_seq
            self._rows += 1
            yield charge

    def idle(self) -> None:
        """Everything known is finished. Raises Failed when that was more before: a ledger that was restored is not waited
        for until it has as many rows."""
        self._pushed.check_reached(self._rows)
        self._seq = self._source.head.seq

    def trying(self, why: str | None) -> None:
        """`why`: the reason an event is not accepted. New reasons are printed."""
        if why is None:
            self._since, self._why = None, ""
            return
        self._since = self._since if self._since is not None else time.monotonic()
        if why != self._why:
            self._why = why
            hint(f"{self._pushed.endpoint} takes no event now: {why}; it is tried again")

    @property
    def behind(self) -> int:
        """Number of unfinished ledger records."""
        return max(0, self._source.head.seq - self._seq)

    @property
    def waiting_s(self) -> float:
        """How long the present event has been refused."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def serve(self, port: int) -> int:
        """Serves `/metrics` on 127.0.0.1 in a thread; returns the port. Raises UsageFault when it is in use."""
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        registry, labels = CollectorRegistry(), {"pool": self._pushed.pool, "to": self._pushed.to}
        for name, about, value in (
            ("baton_push_behind_records", "Ledger records whose use was not sent yet", lambda: self.behind),
            ("baton_push_waiting_seconds", "How long the next event has not been taken", lambda: self.waiting_s),
            ("baton_push_sent", "Events that were taken", lambda: self._pushed.sent),
            ("baton_push_dead", "Events that were refused", lambda: self._pushed.dead),
            ("baton_push_late", "Events too old to send", lambda: self._pushed.late),
        ):
            gauge = Gauge(name, about, list(labels), registry=registry)
            gauge.labels(**labels).set_function(value)
        try:
            server, _ = start_http_server(port, "127.0.0.1", registry)
        except OSError as error:
            raise UsageFault(f"--metrics-port {port}: {error.strerror}; name another one") from None
        return int(server.server_port)


@contextmanager
def _rows(
    source: FiledLedger, pool: str | None, url: str | None, every_s: float | None, idle: Callable[[], None]
) -> Iterator[Iterator[Charge]]:
    """The ledger's rows; with `every_s`, continues as long as the ledger does."""
    if every_s is None:
        yield charges(source, source.closed)
        return
    with scratch_folder() as folder:
        number = 0

        def more() -> bool:
            nonlocal number
            idle()
            if source.files > _FILES:
                number += 1
                source.join(folder / f"{number:09d}")
            number += 1
            while not grown(source, folder / f"{number:09d}", pool, url):
                time.sleep(every_s)
            return True

        yield charges(source.live(more), source.closed)


def grown(source: FiledLedger, target: Path, pool: str | None, url: str | None) -> bool:
    """Copies new records of the ledger, if any. An unreachable server is reported and asked again."""
    from libs.ledger.export import FileStart
    from libs.ledger.segments import last_seq
    from libs.ledger.verify import export

    async def work(baton: Baton) -> bool:
        js = baton.nats.jetstream()
        if await last_seq(js, source.pool) <= source.last_seq:
            return False
        await export(js, source.pool, target, start=FileStart(source.pool, source.last_seq + 1, source.head))
        return True

    try:
        found = run(work, OPERATOR, url, pool=pool)
    except (ClientError, NatsError, OSError) as error:
        hint(f"the ledger cannot be read now: {error}; it is tried again")
        with suppress(FileNotFoundError):
            target.unlink()
        return False
    if found:
        source.add(target)
    return found
