"""A state as parts of bytes and back. Two equal states give equal parts, so snapshots also prove that folds agree (I9).

A part is bounded (some milliseconds of work) and begins with one letter that says what it holds:

    H  the header: everything small, JSON
    N  nodes: a JSON line each
    D  devices of the fleet, JSON
    P  what is learned beside the state, JSON (`libs.core.scheduling.precedence.keep`)
    L  when jobs reach their time limits, JSON
    J  jobs, JSON: what some of them have in common, and a row for each (`_join_jobs`)
    E  ids of ended jobs: a JSON line of numbers, then a slice of the table as it is (`libs.core.state.ended`)
"""

import json
import marshal
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import zip_longest
from typing import Any, NamedTuple

from libs.core.state.attempt import Attempt, NodePart
from libs.core.state.boosts import Boost, BoostsHad
from libs.core.state.budgets import Budgets
from libs.core.state.clock import BothTimes, PastJumps
from libs.core.state.cut import chunks
from libs.core.state.early_cancels import EarlyCancels
from libs.core.state.ended import EndedJobs
from libs.core.state.fleet import Fleet
from libs.core.state.forms import Form, Rest, own_again, own_of, read, rest_of, spec_of, time_limit_of, written
from libs.core.state.holds import mark_holds
from libs.core.state.job import Job, JobTerms, QueueKey, grant_order, limit_class_of
from libs.core.state.lifecycle import AttemptState
from libs.core.state.limits import Limits, Suspension
from libs.core.state.model import Quarantine, Silence, State
from libs.core.state.past_use import PastUse, UsersPastUse, user_of
from libs.core.state.queue_tree import QueueTree
from libs.core.state.recent_preemptions import RecentPreemptions
from libs.core.state.shape import shape_of
from libs.core.state.unused_cuts import UnusedCuts
from libs.core.state.usable import count_parts, mark_cordoned, mark_quarantined, mark_repartitions, mark_silent
from libs.core.state.waiting import back_off, enqueue
from schemas.attempts import Category, Cause
from schemas.jobs import Checkpoint, JobSpec, JobState, Latency, Network, StepProgress
from schemas.ledger import BoardRecut
from schemas.prices import RateBook
from schemas.resources import Claim, Inventory, Span

VERSION = 10
"""Of the layout of `dump`; whoever keeps the parts keeps it beside them, and reads no other (`libs.ledger.snapshots`)."""
_CHUNK = 2000
"""Devices, or time limits, of one part."""
_NODES = 50
"""Nodes of one part: each may have some ten devices."""
_PLAIN = ("used", "t_us", "inbox_seq", "grants", "preemptions", "finished_by_state", "granter_epoch")
_ADDED = frozenset({"preempted_for", "jumps", "resumed_wall"})
"""Fields of the header that are there only if they have something to tell, and came after what they tell of."""
_MAY_LACK_FIRST = frozenset({"jumps", "resumed_wall"})
"""Those of them that, in a state which goes on from one that a release of before saved, begin with what came after that."""
_LATER = ("wall_us",)
"""Fields like these that snapshots of before do not have."""
_PAST_PLAIN = ("attempts", "preemptions", "first_grant_us", "losses", "failures", "not_before_us")
_ATTEMPT_PLAIN = (
    "number", "granted_us", "running_us", "ended_us", "reason", "failed_code", "beneficiary", "cost_device_s", "checkpoint_us",
)  # fmt: skip


def dump(state: State, learned: Any = None) -> Iterator[bytes]:
    """The parts of `state` as it is at this call, encoded one by one as they are asked for: it may change meanwhile.

    Take them in the thread that changes the state (between its changes; compress and store them in another): only a row
    that changes before its turn is encoded at once, everything else is shared. `learned`: what the placer knows of the
    mix of requests.
    """
    header = {
        "learned": learned,
        "repartitions": [asked.model_dump(mode="json") for asked in state.repartitions.values()],
        "withdrawn": sorted(state.withdrawn),
        "silent": dict(sorted(state.silent.items())),
        "quarantined": dict(sorted(state.quarantined.items())),
        "cordoned": dict(sorted(state.cordoned.items())),
        "reserved": [[gang, list(devices)] for gang, devices in state.reserved.items()],
        "early_cancels": state.early_cancels.rows(),
        "repartition_number": state.repartition_number,
        "repartition_us": state.repartition_us,
        "unused_cuts": state.unused_cuts.dump(),
        "holds": [[beneficiary, list(devices)] for beneficiary, devices in state.holds.items()],
        "suspended": dict(sorted(state.suspended.items())),
        "resumed": {team: at.t_us for team, at in state.resumed.items()},
        "tree": state.tree.dump(),
        "past_use": state.past_use.dump(),
        "past_use_by": state.past_use_by.dump(),
        "preempted": state.preempted.dump(),
        "boosts_had": state.boosts_had.dump(),
        "book": None if state.book is None else state.book.model_dump(mode="json"),
        "closed_us": state.closed_us,
        "budgets": state.budgets.dump(),
        "quotas": {team: limits.dump() for team, limits in state.quotas.items()},
        **{name: getattr(state, name) for name in (*_PLAIN, *_LATER)},
    }
    if state.fragmented:  # only then: so a state that a release of before has saved is still the same as its fold
        header["fragmented"] = dict(sorted(state.fragmented.items()))
    if for_teams := state.preempted.dump_for_teams():
        header["preempted_for"] = for_teams
    if state.jumps:
        header["jumps"] = state.jumps.rows()
    if walls := {team: at.wall_us for team, at in state.resumed.items() if at.wall_us is not None}:
        header["resumed_wall"] = walls
    if state.left:
        header["left"] = dict(sorted(state.left.items()))
    first = b"H" + _json(header)
    nodes, devices, limited = _nodes(state.fleet), _devices(state.fleet), list(state.limited.items())
    beside = state.turns.dump() if state.turns is not None else iter(())
    ended, jobs = state.finished.copy(), state.cuts.take(state.jobs, _row_of, _join_jobs)

    def parts() -> Iterator[bytes]:
        yield first
        yield from (b"N" + part for part in nodes)
        yield from (b"D" + part for part in devices)
        yield from beside
        yield from (b"L" + _json(some) for some in chunks(limited, _CHUNK))
        yield from (b"E" + _json(numbers) + b"\n" + data for numbers, data in ended.dump())
        yield from (b"J" + part for part in jobs.parts())

    return parts()


def unlike(parts: Iterable[bytes], others: Iterable[bytes]) -> str:
    """What differs between a dump that was saved and another of the same fold; "" for nothing. What is learned beside the state
    is not looked at: it is the policy's, which two may have unlike. Nor is what a release of before did not save (`_ADDED`)."""
    for part, other in zip_longest(_of_the_fold(parts), _of_the_fold(others)):
        if part != other and (what := _first_unlike(part or b"", other or b"")):
            return what
    return ""


def _of_the_fold(parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        if part[:1] == b"H":
            yield b"H" + _json({name: value for name, value in json.loads(part[1:]).items() if name != "learned"})
        elif part[:1] != b"P":
            yield part


_KINDS = {b"H": "the header", b"N": "nodes", b"D": "devices", b"L": "time limits", b"J": "jobs", b"E": "ended jobs"}


def _first_unlike(part: bytes, other: bytes) -> str:
    if part[:1] == other[:1] == b"H":
        one, two = json.loads(part[1:]), json.loads(other[1:])
        names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
        names = [name for name in names if name in one or name not in _ADDED]
        names = [name for name in names if name not in _MAY_LACK_FIRST or not _is_end(one[name], two.get(name))]
        return f"in {', '.join(names)}" if names else ""
    return f"in {_KINDS.get(part[:1] or other[:1], 'a part of an unknown kind')}"


def _is_end(some: Any, of: Any) -> bool:
    """Of a list, or a dict in the order in which it was filled."""
    some, of = ([*one.items()] if isinstance(one, dict) else one or [] for one in (some, of))
    return bool(some == of[-len(some) :])


class Loaded(NamedTuple):
    """What a snapshot held."""

    state: State
    learned: Any
    """What the placer knew of the mix of requests; None: nothing."""
    beside: list[bytes]
    """What was learned beside the state."""


def load(parts: Iterable[bytes]) -> Loaded:
    """The inverse of `dump`, of parts that this `VERSION` wrote. Raises ValueError when the first part is no header."""
    source = iter(parts)
    body = json.loads(next(source, b"").removeprefix(b"H"))
    state = State(**{name: body[name] for name in _PLAIN} | {name: body[name] for name in _LATER if name in body})
    state.quotas = {team: Limits.load(limits) for team, limits in body["quotas"].items()}
    state.tree = QueueTree.load(body.get("tree", {}))
    state.budgets = Budgets.load(body.get("budgets", {}), state.tree)
    state.book = None if body.get("book") is None else RateBook.model_validate(body["book"])
    state.closed_us = None if body.get("closed_us") is None else (body["closed_us"][0], body["closed_us"][1])
    state.boosts_had = BoostsHad(body.get("boosts_had"))
    state.preempted = RecentPreemptions.load(body.get("preempted", ()), body.get("preempted_for", ()))
    state.suspended = {team: Suspension(*how) for team, how in body.get("suspended", {}).items()}
    walls = body.get("resumed_wall", {})
    state.resumed = {team: BothTimes(t_us, walls.get(team)) for team, t_us in body.get("resumed", {}).items()}
    state.left = body.get("left", {})
    state.jumps = PastJumps(body.get("jumps", ()))
    nodes: list[Any] = []
    devices: list[Any] = []
    ended: list[tuple[list[int], bytes]] = []
    beside: list[bytes] = []
    kinds: _Kinds = {}
    for part in source:
        kind, data = part[:1], part[1:]
        if kind == b"J":
            state.jobs.update((job.id, job) for job in _load_jobs(json.loads(data), state.tree, kinds))
        elif kind == b"E":
            numbers, _, table = data.partition(b"\n")
            ended.append((json.loads(numbers), table))
        elif kind == b"N":
            nodes += map(json.loads, data.split(b"\n"))
        elif kind == b"P":
            beside.append(data)
        elif kind == b"L":
            state.limited.update(json.loads(data))
        else:
            devices += json.loads(data)
    state.fleet, state.finished = _load_fleet(nodes, devices), EndedJobs.load(ended)
    _index(state)
    state.holds = {beneficiary: tuple(held) for beneficiary, held in body["holds"]}
    mark_holds(state)
    asked = [BoardRecut.model_validate(raw) for raw in body["repartitions"]]
    state.repartitions = {one.recut.board: one for one in asked}
    state.withdrawn = set(body["withdrawn"])
    state.early_cancels = EarlyCancels.of_rows(body.get("early_cancels", ()))
    state.repartition_number, state.repartition_us = body["repartition_number"], body["repartition_us"]
    state.unused_cuts = UnusedCuts.load(body["unused_cuts"])
    mark_repartitions(state)
    state.past_use = PastUse.load(body.get("past_use", {}))
    state.past_use_by = UsersPastUse.load(body.get("past_use_by", {}))
    state.silent = {node: Silence(*how) for node, how in body["silent"].items()}
    mark_silent(state)
    state.quarantined = {device: Quarantine(*how) for device, how in body["quarantined"].items()}
    mark_quarantined(state)
    state.cordoned = body.get("cordoned", {})
    mark_cordoned(state)
    state.reserved = {gang: tuple(devices) for gang, devices in body.get("reserved", ())}
    state.fragmented = body.get("fragmented", {})
    return Loaded(state, body["learned"], beside)


def _index(state: State) -> None:
    """What follows from the jobs: who waits, and what runs where."""
    jobs = list(state.jobs.values())
    state.boosted = {job.id: job.boost.until_us for job in jobs if job.boost is not None}
    for job in sorted(jobs, key=lambda j: (j.submitted_us, j.id)):
        if job.state is JobState.QUEUED and job.not_before_us > state.t_us:
            back_off(state, job)
        elif job.state is JobState.QUEUED:
            enqueue(state, job)
    state.on_node = {name: {} for name in state.fleet.nodes}
    for job in sorted(jobs, key=grant_order):
        if job.current is None:
            continue
        if job.shape.spread[0]:
            state.spread_peers.setdefault((job.team, job.shape.spread[0]), {})[job.id] = None
        for part in job.current.parts.values():
            if not part.freed:
                state.on_node[part.node][job.id] = None
                count_parts(state, part.node)
                state.fleet.occupy_hosts(part.claims)
                state.team_claims.take(state.fleet, job.team, part.claims, job.current.granted_us, job.spec)
                _count_user(state, job, part)


def _count_user(state: State, job: Job, part: NodePart) -> None:
    used = state.used_by.setdefault(user_of(job.team, job.user), {})
    for claim in part.claims:
        kind = state.fleet.kind(state.fleet.row(claim.device))
        used[kind] = used.get(kind, 0) + claim.milli


def _nodes(fleet: Fleet) -> Iterator[bytes]:
    """Inventories, a line each, of the nodes as they are at this call: `packed` never changes, a new one replaces it."""
    nodes = [fleet.nodes[name] for name in fleet.node_names.names]
    rows = [(node.packed, node.incarnation, node.up) for node in nodes]

    def parts() -> Iterator[bytes]:
        for some in chunks(rows, _NODES):
            yield b"\n".join(
                b"[" + zlib.decompress(packed) + b"," + _json([incarnation, up])[1:] for packed, incarnation, up in some
            )

    return parts()


def _devices(fleet: Fleet) -> Iterator[bytes]:
    """[id, epoch, free compute, free memory, memory] per device, of the arrays as they are at this call."""
    n = len(fleet)
    names = fleet.devices.names[:n]
    columns = [array[:n].copy() for array in (fleet.epoch, fleet.free_milli, fleet.free_mib, fleet.memory_mib)]

    def parts() -> Iterator[bytes]:
        for start in range(0, n, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            yield _json([list(row) for row in zip(names[chunk], *(c[chunk].tolist() for c in columns), strict=True)])

    return parts()


def _load_fleet(nodes: list[Any], devices: list[Any]) -> Fleet:
    """Devices get their rows back: of two equal ones the lower row is taken, and repartitions add rows out of node order."""
    fleet = Fleet()
    for name, *_ in devices:  # also those that no node has now: their epochs must still never go back
        fleet.adopt(name)
    for raw, incarnation, up in nodes:
        node = fleet.join(Inventory.model_validate(raw), incarnation)
        if not up:
            fleet.leave(node.name)
    for name, epoch, free_milli, free_mib, memory_mib in devices:
        row = fleet.row(name)
        fleet.epoch[row], fleet.free_milli[row] = epoch, free_milli
        fleet.free_mib[row], fleet.memory_mib[row] = free_mib, memory_mib
    return fleet


class _JobRow(NamedTuple):
    """A job as it is at one moment. None of it changes."""

    kind: tuple[Form, JobTerms, QueueKey]
    id: str
    own: bytes
    submitted_us: int
    queued_us: int
    more: dict[str, Any] | None
    """What has become of it; None: it has only waited."""


def _row_of(_: str, job: Job) -> _JobRow:
    more = None if job.waits_only else _more_of(job)
    return _JobRow((job.form, job.terms, job.queue.of_limit(0)), job.id, job.own, job.submitted_us, job.queued_us, more)


def _join_jobs(rows: Iterable[_JobRow]) -> bytes:
    """Jobs of one kind share nearly all: that is told once, with the first of them in this part.

    A row is [number of its kind, id, hash of its body, name, submitted_us, queued_us, what else of its spec is its own or
    null as the first one's, what has become of it or null]."""
    kinds: dict[tuple[Form, JobTerms, QueueKey], tuple[int, list[Any]]] = {}
    told: list[bytes] = []
    out: list[Any] = []
    for row in rows:
        spec_hash, name, own = own_of(row.own)
        kind = kinds.get(row.kind)
        rest = written(own) if own is not None else None
        if kind is None:
            form, terms, queue = row.kind
            kind = kinds[row.kind] = len(kinds), rest if rest is not None else written(rest_of(form))
            told.append(_json(_kind_of(terms, queue))[:-1] + b',"spec":' + _spec_json(spec_of(form, row.own)) + b"}")
            rest = None
        elif rest is None and kind[1] != (forms_own := written(rest_of(row.kind[0]))):
            rest = forms_own
        elif rest == kind[1]:
            rest = None
        out.append([kind[0], row.id, spec_hash, name, row.submitted_us, row.queued_us, rest, row.more])
    return b'{"kinds":[' + b",".join(told) + b'],"jobs":' + _json(out) + b"}"


def _spec_json(spec: JobSpec) -> bytes:
    """From the model to JSON without a dict between."""
    return spec.__pydantic_serializer__.to_json(spec)


def _kind_of(terms: JobTerms, queue: QueueKey) -> dict[str, Any]:
    return {
        "team": queue.team, "priority": queue.priority, "preempts": queue.preempts, "user": terms.user,
        "network": terms.network.value, "lease_s": terms.lease_s, "latency": terms.latency.value,
    }  # fmt: skip


def _more_of(job: Job) -> dict[str, Any]:
    """What has become of a job."""
    return {
        **{name: getattr(job, name) for name in _PAST_PLAIN},
        "state": job.state.value,
        "preempted_us": job.preempted_us,
        "counted_us": job.counted_us,
        "boost": job.boost,
        "endings": dict(job.endings),
        "resume": job.resume.model_dump(mode="json") if job.resume else None,
        "current": _dump_attempt(job.current) if job.current else None,
    }


def _dump_attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        **{name: getattr(attempt, name) for name in _ATTEMPT_PLAIN},
        "state": attempt.state.value,
        "cause": attempt.cause,
        "failed_category": attempt.failed_category,
        "claims": [c.model_dump(mode="json") for c in attempt.claims],
        "parts": [asdict(part) | {"claims": None} for part in attempt.parts.values()],
        "checkpoint": attempt.checkpoint.model_dump(mode="json") if attempt.checkpoint else None,
        "progress": [attempt.progress.model_dump(mode="json"), attempt.progress_us] if attempt.progress else None,
        "span": attempt.span.model_dump(mode="json") if attempt.span else None,
    }


_Kinds = dict[bytes, tuple[Job, Rest | None]]
"""Kinds of jobs that earlier parts told, by all that a part tells of one but the name of its first job."""
_KNOWN_KINDS = 4096


def _load_jobs(part: dict[str, Any], tree: QueueTree, known: _Kinds) -> Iterator[Job]:
    kinds = [_kind_again(raw, tree, known) for raw in part["kinds"]]
    for number, id, spec_hash, name, submitted_us, queued_us, rest, more in part["jobs"]:
        first, own = kinds[number]
        limit_class = first.queue.limit_class
        if rest is not None:
            own = read(rest, first.form)
            limit_class = limit_class_of(time_limit_of(own if own is not None else rest_of(first.form)))
        job = first.like(id, own_again(spec_hash, name, own), limit_class, submitted_us, queued_us)
        if more is not None:
            _load_more(job, more)
        yield job


def _kind_again(raw: dict[str, Any], tree: QueueTree, known: _Kinds) -> tuple[Job, Rest | None]:
    """Each part tells its kinds anew, and a part has no more jobs than some hundred: a spec is read once for all of them."""
    name = raw["spec"].pop("name")
    mark = marshal.dumps(raw, 2)
    kind = known.get(mark)
    if kind is None:
        raw["spec"]["name"] = name
        first = _load_kind(raw, tree)
        if len(known) >= _KNOWN_KINDS:
            known.clear()
        kind = known[mark] = first, own_of(first.own)[2]
    return kind


def _load_kind(raw: dict[str, Any], tree: QueueTree) -> Job:
    """A job of this kind: the first of its part, but for its id and times."""
    spec, network = JobSpec.model_validate(raw["spec"]), Network(raw["network"])
    return Job(
        "", raw["team"], spec, "", raw["priority"], raw["preempts"], submitted_us=0, queued_us=0,
        shape=shape_of(spec, network), network=network, lease_s=raw["lease_s"], latency=Latency(raw["latency"]),
        user=raw["user"], by_user=tree.by_user(raw["team"]),
    )  # fmt: skip


def _load_more(job: Job, raw: dict[str, Any]) -> None:
    for name in _PAST_PLAIN:
        setattr(job, name, raw.get(name, 0))  # snapshots of before have no failures
    job.state, job.preempted_us = JobState(raw["state"]), tuple(raw["preempted_us"])
    job.counted_us = tuple(raw.get("counted_us", raw["preempted_us"]))  # before, all counted
    job.boost = Boost(*raw["boost"]) if raw["boost"] else None
    job.endings = {Category(name): count for name, count in raw["endings"].items()}
    job.resume = _checkpoint(raw["resume"])
    job.current = _load_attempt(raw["current"]) if raw["current"] else None


def _load_attempt(raw: dict[str, Any]) -> Attempt:
    claims = tuple(Claim.model_validate(c) for c in raw["claims"])
    on_node: dict[str, list[Claim]] = {}
    for claim in claims:
        on_node.setdefault(claim.node, []).append(claim)
    parts = {p["node"]: NodePart(**p | {"claims": tuple(on_node[p["node"]])}) for p in raw["parts"]}
    progress, progress_us = raw.get("progress") or (None, 0)
    return Attempt(
        **{name: raw[name] for name in _ATTEMPT_PLAIN},
        progress=StepProgress.model_validate(progress) if progress else None,
        progress_us=progress_us,
        state=AttemptState(raw["state"]),
        cause=Cause(raw["cause"]) if raw["cause"] else None,
        failed_category=Category(raw["failed_category"]) if raw["failed_category"] else None,
        claims=claims,
        parts=parts,
        checkpoint=_checkpoint(raw["checkpoint"]),
        span=Span.model_validate(raw["span"]) if raw["span"] else None,
    )


def _checkpoint(raw: dict[str, Any] | None) -> Checkpoint | None:
    return Checkpoint.model_validate(raw) if raw else None


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
