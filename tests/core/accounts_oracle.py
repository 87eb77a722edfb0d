"""Who has each unit of each device in each microsecond, by brute force: all of the ledger is looked at for every span between
two breakpoints. It shares no code with the books; it is slow, and easy to believe."""

from copy import deepcopy
from typing import Any, NamedTuple

from schemas import ledger as led
from schemas.ledger import LedgerRecord

SLICES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 3, "4g.40gb": 4, "7g.80gb": 7}
NOBODY = ("", "", "", 0, "", "")
Cell = dict[tuple[str, tuple[Any, ...]], int]
"""(account, payer) -> units"""


class Truth(NamedTuple):
    """`cells`: (device, number of the span) -> what its units are. `points`: where spans begin; the last one is the end."""

    cells: dict[tuple[str, int], Cell]
    points: list[int]


def truth(records: list[LedgerRecord], jumps: list[int]) -> Truth:
    """The whole story of a ledger. `jumps`: more breakpoints, at which nothing need happen."""
    snapshots, unknown = _replay(records)
    times = [record.t_us for record in records]
    points = sorted({t for t in (*times, *jumps, *(window[2] for window in unknown)) if times[0] <= t <= times[-1]})
    cells: dict[tuple[str, int], Cell] = {}
    for i, start in enumerate(points[:-1]):
        at = max(n for n, t in enumerate(times) if t <= start)
        for device, row in snapshots[at].items():
            cell = cells.setdefault((device, i), {})
            for key, (account, payer, units, _) in _lines(row).items():
                for whose, line, since_us, until_us in unknown:
                    if whose == device and line == key and since_us <= start < until_us:
                        account, payer = "unconfirmed", payer if payer[3] else NOBODY
                cell[account, payer] = cell.get((account, payer), 0) + units
    return Truth({at: cell for at, cell in cells.items() if cell}, points)


def _lines(row: dict[str, Any]) -> dict[Any, tuple[str, tuple[Any, ...], int, str]]:
    """How a device is divided: who holds it -> (account, payer, units, cause)."""
    out, left = {}, row["units"]
    for key, (payer, milli) in row["claims"].items():
        units = row["units"] * milli // 1000
        left -= units
        if units:
            out[key] = ("billed", payer, units, "")
    if row["exists"] and left > 0:
        if row["broken"] is not None:
            out["rest"] = ("faulty", NOBODY, left, row["broken"])
        elif row["going"]:
            out["rest"] = ("cleaning", NOBODY, left, "")
        elif row["out"] is not None:
            out["rest"] = ("maintenance", NOBODY, left, row["out"])
        elif row["held"] is not None:
            out["rest"] = ("held", row["held"], left, "")
        elif row["kept"] is not None:
            out["rest"] = ("reserved", row["kept"], left, "")
        else:
            out["rest"] = ("idle", NOBODY, left, "")
    return out


def _replay(records: list[LedgerRecord]) -> tuple[list[dict[str, Any]], list[tuple[str, Any, int, int]]]:
    """What is known after each record; and spans that nobody knows of: (device, whose, since, until)."""
    rows: dict[str, Any] = {}
    jobs: dict[str, tuple[Any, ...]] = {}
    parents: dict[str, str] = {}
    boards: dict[str, list[str]] = {}
    silent: dict[str, tuple[int, int]] = {}  # node -> (told by record number, since)
    joined: dict[str, int] = {}
    out: dict[str, str] = {}
    kept: dict[str, tuple[Any, ...]] = {}

    def keep(job_id: str, devices: Any, payer: Any = None) -> None:
        for device in [d for d, whose in kept.items() if whose[2] == job_id]:
            del kept[device]
        kept.update(dict.fromkeys(devices, payer))
        for device, row in rows.items():
            row["kept"] = kept.get(device)

    snapshots: list[dict[str, Any]] = []
    unknown: list[tuple[str, Any, int, int]] = []

    def offer(inventory: Any) -> None:
        on_board = {board.id: 0 for board in inventory.boards}
        offered = {}
        for d in inventory.devices:
            offered[d.id] = 1000 * SLICES.get(d.mig_profile, 7)
            if d.parent:
                on_board[d.parent] += SLICES[d.mig_profile]
        offered |= {board: 7000 - 1000 * used for board, used in on_board.items()}
        fresh = {
            "claims": {},
            "held": None,
            "broken": None,
            "going": False,
            "node": inventory.node,
            "out": out.get(inventory.node),
        }
        for device, row in rows.items():
            if row["node"] == inventory.node and device not in offered:
                row.update(exists=False, broken=None)
        for device, units in offered.items():
            rows.setdefault(device, deepcopy(fresh)).update(units=units, exists=True)
            rows[device]["kept"] = kept.get(device)

    def lost(node: str, number: int, t_us: int) -> None:
        told, since = silent.pop(node, (0, None))
        if since is not None:
            unknown.extend(_rests(snapshots, records, node, told, since, number, t_us))

    for number, record in enumerate(records):
        before = dict(silent)
        for e in record.events:
            if isinstance(e, led.NodeJoined):
                lost(e.inventory.node, number, record.t_us)
                joined[e.inventory.node] = record.t_us
                for board in boards.values():
                    for device in board if e.inventory.node == "m" else ():
                        if device in rows:
                            rows[device]["going"] = False
                offer(e.inventory)
            elif isinstance(e, led.NodeLeft):
                lost(e.node, number, record.t_us)
                for row in rows.values():
                    if row["node"] == e.node:
                        row.update(exists=False, going=False)
            elif isinstance(e, led.NodeSilence):
                silent.setdefault(e.node, (number, max(joined[e.node], record.t_us - int(e.silent_s * 1e6))))
                before.setdefault(e.node, silent[e.node])
            elif isinstance(e, led.NodeHeard):
                del silent[e.node]
                before.pop(e.node)
            elif isinstance(e, led.QueuesApplied):
                parents = {queue.name: queue.parent for queue in e.queues}
            elif isinstance(e, led.JobQueued):
                jobs[e.job_id] = (e.team, e.user, e.job_id, 0, e.spec.priority_class)
            elif isinstance(e, led.NodeCordoned | led.NodeUncordoned):
                out.pop(e.node, None)
                if isinstance(e, led.NodeCordoned):
                    out[e.node] = f"{e.user}: {e.reason}"
                for row in rows.values():
                    if row["node"] == e.node:
                        row["out"] = out.get(e.node)
            elif isinstance(e, led.DevicesReserved):
                keep(e.gang, e.devices, _payer(jobs[e.gang], 0, parents))
            elif isinstance(e, led.JobFinished):
                keep(e.job_id, ())
            elif isinstance(e, led.JobGranted):
                keep(e.job_id, ())
                for claim in e.claims:
                    payer = _payer(jobs[e.job_id], e.attempt, parents)
                    rows[claim.device]["claims"][e.job_id, e.attempt] = (payer, claim.milli)
            elif isinstance(e, led.DevicesFreed):
                since = before[e.node][1] if e.node in before else None
                if since is None and e.silent_s is not None:
                    since = record.t_us - int(e.silent_s * 1e6)
                for device in e.devices:
                    del rows[device]["claims"][e.job_id, e.attempt]
                    if since is not None and e.evidence.value in ("lease-ended", "new-incarnation"):
                        unknown.append((device, (e.job_id, e.attempt), since, record.t_us))
            elif isinstance(e, led.DevicesHeld):
                for device in e.devices:
                    rows[device]["held"] = _payer(jobs[e.job_id], 0, parents)
            elif isinstance(e, led.HoldReleased):
                for row in rows.values():
                    if row["held"] is not None and row["held"][2] == e.job_id:
                        row["held"] = None
            elif isinstance(e, led.DeviceQuarantined):
                rows[e.device]["broken"] = e.users
            elif isinstance(e, led.DeviceReturned):
                rows[e.device]["broken"] = None
            elif isinstance(e, led.BoardRecut):
                boards[e.recut.board] = [*e.recut.destroy, e.recut.board]
                for device in boards[e.recut.board]:
                    rows[device]["going"] = True
            elif isinstance(e, led.BoardCutDone):
                for device in boards.pop(e.board):
                    rows[device]["going"] = False
                offer(e.inventory)
        snapshots.append(deepcopy(rows))
    end_us = records[-1].t_us
    for node, (told, since) in silent.items():
        unknown.extend(_rests(snapshots, records, node, told, since, len(records), end_us))
        for device, row in rows.items():
            if row["node"] == node:
                unknown.extend((device, key, since, end_us) for key in row["claims"])
    return snapshots, unknown


def _rests(
    snapshots: list[dict[str, Any]],
    records: list[LedgerRecord],
    node: str,
    told: int,
    since: int,
    number: int,
    until: int,
) -> list[tuple[str, Any, int, int]]:
    """What nobody held on a node that fell silent (told by record `told`) and was lost by record `number`: unknown as far back
    as nothing was decided of it, and not before it was heard last."""
    out: list[tuple[str, Any, int, int]] = []
    devices = {
        d for snapshot in snapshots[max(0, told - 1) : number] for d, row in snapshot.items() if row["node"] == node
    }
    for device in devices:
        first = told
        line = _rest(snapshots, told - 1, device)
        if line is not None:
            while first > 0 and _rest(snapshots, first - 1, device) == line:
                first -= 1
        out.append((device, "rest", max(since, records[first].t_us), until))
    return out


def _rest(snapshots: list[dict[str, Any]], at: int, device: str) -> Any:
    row = snapshots[at].get(device) if at >= 0 else None
    return _lines(row).get("rest") if row is not None else None


def _payer(job: tuple[Any, ...], attempt: int, parents: dict[str, str]) -> tuple[Any, ...]:
    team, user, job_id, _, klass = job
    above = parents.get(team, "")
    return (team, user, job_id, attempt, klass, f"{above}/{team}" if above else team)
