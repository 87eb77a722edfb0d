"""`baton status`: the pool at a glance, and what the asker may see of its jobs; to operators also which certificate
ends soon."""

import time

from libs.bus.endings import Shown, look
from libs.cli import units
from libs.cli.options import Output, Pool, Team, Url
from libs.cli.output import Format, document, fields, hint
from libs.cli.session import run
from libs.client import Baton
from schemas.pool_status import PoolStatus, Quantiles
from schemas.subjects import OPERATOR


def command(pool: Pool = None, team: Team = None, url: Url = None, output: Output = Format.TABLE) -> None:
    """What the pool has, what of it your team's jobs hold and wait for; the operator sees all of it."""

    async def work(baton: Baton) -> tuple[PoolStatus, Shown | None]:
        return await baton.status(), await look(baton.place.address) if baton.team == OPERATOR else None

    status, shown = run(work, team, url, pool=pool)
    if shown is not None:
        _tell_endings(shown)
    if output in (Format.JSON, Format.YAML):
        document(status, output)
        return
    open_jobs = " of open jobs" if status.team else ""
    fields(
        [
            ("pool", status.pool),
            ("nodes", f"{status.nodes_up} up, {units.counted(status.devices, 'device')}{_quarantined(status)}"),
            ("types", ", ".join(f"{count} {kind}" for kind, count in sorted(status.kinds.items()))),
            ("held by team " + status.team if status.team else "held", _held(status)),
            *([("waited for", units.counted(status.waiting_devices, "device"))] if status.waiting_devices else []),
            *(
                [("quota", f"{units.devices(status.limit_milli)} accelerators")]
                if status.limit_milli is not None
                else []
            ),
            ("jobs", ", ".join(f"{count} {state}" for state, count in sorted(status.jobs.items()) if count)),
            *([("submits", f"put off: {status.busy}")] if status.busy else []),
            ("grants" + open_jobs, status.grants),
            ("preemptions" + open_jobs, status.preemptions),
            ("scheduling latency", _quantiles(status.scheduling_latency_ms)),
            ("queue wait", _quantiles(status.queue_wait_ms)),
            ("ledger", f"sequence {status.ledger_seq}" + (f", inbox {status.inbox_seq}" if not status.team else "")),
        ]
    )


def _tell_endings(shown: Shown) -> None:
    now_s = time.time()
    for server, term in shown.servers.items():
        if term.soon(now_s):
            hint(
                f"the certificate of the broker {server} {term.told(now_s)}: run `baton credentials --renew` with the options "
                "of before where the keys are, and let the broker reload (docs/security.md, The wire)"
            )
    if shown.authority is not None and shown.authority.soon(now_s):
        hint(
            f"the authority of the broker's certificate {shown.authority.told(now_s)}: docs/security.md, A new authority"
        )


def _quarantined(status: PoolStatus) -> str:
    return f" and {status.devices_quarantined} in quarantine" if status.devices_quarantined else ""


def _held(status: PoolStatus) -> str:
    """Whole accelerators, a slice as its part of a board; processors apart."""
    parts = [
        _text(status.accelerators_used_milli, status.accelerators_milli, "accelerator"),
        _text(status.processors_used_milli, status.processors_milli, "processor device"),
    ]
    return ", ".join(part for part in parts if part) or "-"


def _text(used_milli: int, total_milli: int, thing: str) -> str:
    plural = "" if total_milli == 1000 else "s"
    return f"{units.devices(used_milli)} of {units.devices(total_milli)} {thing}{plural}" if total_milli else ""


def _quantiles(q: Quantiles) -> str:
    return f"p50 {q.p50:g} ms, p99 {q.p99:g} ms, max {q.max:g} ms (of {q.count})" if q.count else "-"
