"""Should this request enter the pool? Every objection at once, each with the value and the fix.

    evaluate(request, team, context) -> Admitted | Repeated | Rejected

Refused is what is not allowed or could never run here: waiting would not help. What merely does not fit now is admitted
and waits. Where a model is described, its estimated memory per device becomes the job's memory demand, so that it is
never placed on a device that it cannot run on.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from libs.core.accelerators import vendors
from libs.core.accelerators.spelling import meant
from libs.core.admission.demand import demand_of
from libs.core.admission.device_request import with_demand
from libs.core.admission.environment import refused_names, variable_part
from libs.core.admission.feasible import objections, unserved
from libs.core.admission.fleet_shape import Allowed, FleetShape
from libs.core.admission.priority_class import DEFAULT_CLASSES, PriorityClass
from libs.core.admission.refusal import Refusal, RefusalCause, refuse
from libs.core.admission.time_limits import time_limits
from libs.core.state.ended import too_old
from libs.core.state.limits import Limits, Usage
from libs.core.state.own_network import asked_for
from libs.core.state.shape import Shape, shape_of
from schemas.ids import job_id
from schemas.jobs import JobLimits, JobSpec, Network
from schemas.requests import SubmitJob

MAX_COMMAND_BYTES = 65_536
"""Command, environment and working directory together: each grant of the job sends them to its nodes."""


class LimitReached(Protocol):
    """A limit in words: how much of what it allows (`8 H100`), and how much of that the request needs."""

    @property
    def limit(self) -> str: ...

    @property
    def needs(self) -> str: ...


class RoomLeft(Protocol):
    """What limits leave of a request: None when not even its least, and the limits that are reached."""

    @property
    def request(self) -> Shape | None: ...

    @property
    def reached(self) -> Sequence[LimitReached]: ...


RoomRule = Callable[[Limits | None, Usage, Shape, Collection[str]], RoomLeft]
"""(limits of the team, what it holds, the request, models that one without types may go to) -> what is left of it."""


@dataclass(frozen=True, slots=True)
class AdmissionContext:
    """What a request is judged against. `room`: the rule of limits (`libs.core.scheduling.limits.room`), which stands with
    those who schedule and is asked here for a team that holds nothing."""

    fleet: FleetShape
    room: RoomRule
    classes: Mapping[str, PriorityClass] = field(default_factory=lambda: {c.name: c for c in DEFAULT_CLASSES})
    secrets: Callable[[str], Collection[str] | None] = lambda team: None
    """The names of a team's secrets; None: they are not known here."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """`job` may differ from what was submitted in `resources.memory_mib` (`estimate` in docs/vram.md), and has the
    limits of its class where it says none.

    `note` says what the job waits for when nothing could be checked.
    """

    job_id: str
    job: JobSpec
    spec_hash: str
    priority_class: PriorityClass
    note: str = ""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same request was admitted before: nothing new happens."""

    job_id: str


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    job_id: str
    refusals: tuple[Refusal, ...]


AdmissionVerdict = Admitted | Repeated | NotAdmitted


def evaluate(
    request: SubmitJob, team: str, context: AdmissionContext, submitted_us: int | None = None
) -> AdmissionVerdict:  # fmt: skip
    """Judges a well-formed request of `team`, which the broker stored at `submitted_us` (None: nobody sent it yet)."""
    job, job_of_key = request.job, job_id(team, request.client_key)
    hashes = request.spec_hashes()
    spec_hash = hashes[0]
    same = context.fleet.same(job_of_key, spec_hash)
    if same is False:
        same = any(context.fleet.same(job_of_key, before) for before in hashes[1:])
    if same:
        return Repeated(job_of_key)
    if (suspended := context.fleet.suspended.get(team)) is not None:
        why = refuse(
            RefusalCause.SUSPENDED,
            "team",
            team,
            suspended.text(team),
            "ask the operators of the pool; questions are answered",
        )
        return NotAdmitted(job_of_key, (why,))
    refusals = [*_age(submitted_us, context.fleet), *_client_key(request, job_of_key, same)]
    known = context.fleet.allowed.get((team, id(job)))
    if known is not None and known.job is job and known.classes is context.classes and not refusals:
        return Admitted(job_of_key, known.admitted, spec_hash, context.classes[job.priority_class], known.note)
    demand = demand_of(job)
    refusals += [
        *_class(job, team, context),
        *_environment(job),
        *_secrets(job),
        *_unknown_secrets(job, team, context),
        *_role_names(job),
        *_command(job),
        *demand.refusals,
        *_hardware(job),
        *_quota(job, team, context),
        *(
            unserved(job, demand)
            if context.fleet.empty
            else objections(_placed_as(job, context), demand, context.fleet)
        ),
    ]
    if refusals:
        return NotAdmitted(job_of_key, tuple(refusals))
    asked = job
    if (resources := with_demand(job.resources, demand)) != job.resources:
        job = job.model_copy(update={"resources": resources})
    note = "no node has registered yet: it waits for the first" if context.fleet.empty else ""
    priority_class = context.classes[job.priority_class]
    limit_s = time_limits(team, priority_class, context.fleet.tree).of(job)
    if limit_s != job.time_limit_s:
        job = job.model_copy(update={"time_limit_s": limit_s})
    if priority_class.limits is not None:
        job = job.model_copy(update={"limits": (job.limits or JobLimits()).or_else(priority_class.limits)})
    if not job.secrets:  # which its team may take away
        context.fleet.allow(team, Allowed(asked, job, note, context.classes))
    return Admitted(job_of_key, job, spec_hash, priority_class, note)


def _age(submitted_us: int | None, fleet: FleetShape) -> Iterator[Refusal]:
    """Judged by the broker's own timestamp, so no store of old jobs has to be asked whether it has run."""
    if submitted_us is not None and submitted_us < fleet.oldest_us:
        problem = too_old(submitted_us + fleet.behind_us, fleet.t_us, fleet.ended)
        yield refuse(
            RefusalCause.TOO_OLD, "", submitted_us, problem, "look whether it has run; if not, submit it again"
        )


def _client_key(request: SubmitJob, job_of_key: str, same: bool | None) -> Iterator[Refusal]:
    if same is False:
        yield refuse(
            RefusalCause.CLIENT_KEY,
            "client_key",
            request.client_key,
            f"client_key already names {job_of_key} with another body",
            "use a new client_key for a new job; repeat exactly the first body to ask for the same job again",
        )


def _class(job: JobSpec, team: str, context: AdmissionContext) -> Iterator[Refusal]:
    if job.priority_class not in context.classes:
        names = sorted(context.classes, key=lambda name: -context.classes[name].priority)
        yield refuse(
            RefusalCause.CLASS,
            "job.priority_class",
            job.priority_class,
            "no such priority class",
            f"{meant(job.priority_class, names)}use one of: {', '.join(names)}",
        )
        return
    allowed = context.fleet.tree.classes(team)
    if allowed is not None and job.priority_class not in allowed:
        yield refuse(
            RefusalCause.CLASS,
            "job.priority_class",
            job.priority_class,
            f"the queue of team {team} may not use it",
            f"use one of: {', '.join(allowed)}" if allowed else "ask the operators: the queue may use no class",
        )
    priority_class = context.classes[job.priority_class]
    longest_s = priority_class.longest_grace_s
    graces = {"job.stop_grace_s": job.stop_grace_s}
    if job.checkpoint is not None:
        graces["job.checkpoint.grace_s"] = job.checkpoint.grace_s
    for path, grace_s in graces.items():
        if grace_s > longest_s:
            problem = (
                f"class {job.priority_class} gives a job {longest_s:g} s to save and stop: others wait for its devices"
            )
            yield refuse(RefusalCause.GRACE, path, grace_s, problem, f"use at most {longest_s:g}")
    yield from time_limits(team, priority_class, context.fleet.tree).refusals(job)


def _environment(job: JobSpec) -> Iterator[Refusal]:
    for name in refused_names(job.env):
        yield refuse(
            RefusalCause.ENVIRONMENT,
            f"job.env.{name}",
            job.env[name],
            f"{name} belongs to Baton or to the program loader, and a job may not set it",
            "remove it; devices, ranks and rendezvous are set by Baton",
        )


def _secrets(job: JobSpec) -> Iterator[Refusal]:
    """Where they are delivered."""
    variables, files = dict.fromkeys(job.env, "job.env"), dict[str, str]()
    for i, use in enumerate(job.secrets):
        path = f"job.secrets.{i}"
        if use.env is not None and refused_names([use.env]):
            yield refuse(
                RefusalCause.ENVIRONMENT, f"{path}.env", use.env,
                f"{use.env} belongs to Baton or to the program loader, and a job may not set it",
                "name another variable, or leave out env: the value is then a file in $BATON_SECRETS_DIR",
            )  # fmt: skip
        for what, name, taken in (("env", use.env, variables), ("file", use.file_name, files)):
            if name is not None and (first := taken.setdefault(name, path)) != path:
                yield refuse(
                    RefusalCause.ENVIRONMENT,
                    f"{path}.{what}",
                    name,
                    f"{first} has this name already",
                    f"give {what} another name",
                )


def _unknown_secrets(job: JobSpec, team: str, context: AdmissionContext) -> Iterator[Refusal]:
    """One that is removed after this is missed at the node."""
    if not job.secrets or (known := context.secrets(team)) is None:
        return
    for i, use in enumerate(job.secrets):
        if use.secret not in known:
            yield refuse(
                RefusalCause.SECRET,
                f"job.secrets.{i}.secret",
                use.secret,
                f"team {team} has no secret {use.secret}; it has: {', '.join(sorted(known)) or 'none'}",
                f"{meant(use.secret, known)}`baton secret set {use.secret}`, then submit again",
            )


def _role_names(job: JobSpec) -> Iterator[Refusal]:
    """Processes are told where a role runs by a variable with its name: two roles must not share one."""
    first: dict[str, str] = {}
    for i, role in enumerate(job.resources.roles):
        other = first.setdefault(variable_part(role.name), role.name)
        if other != role.name:
            yield refuse(
                RefusalCause.ENVIRONMENT, f"job.resources.roles.{i}.name", role.name,
                f"the hosts of {other} and of {role.name} would be told in one variable, "
                f"BATON_ROLE_HOSTS_{variable_part(role.name)}",
                "rename one: capitals, dots and dashes do not tell roles apart there",
            )  # fmt: skip


def _command(job: JobSpec) -> Iterator[Refusal]:
    size = sum(len(a.encode()) + 1 for a in job.command) + len(job.workdir.encode())
    size += sum(len(name) + len(value.encode()) + 2 for name, value in job.env.items())
    if size > MAX_COMMAND_BYTES:
        yield refuse(
            RefusalCause.COMMAND,
            "job.command",
            f"{size} bytes",
            f"command, environment and workdir are {size} bytes together; at most {MAX_COMMAND_BYTES} are allowed",
            "put long arguments into a file and pass its path",
        )
    for path, value in (
        *((f"job.command.{i}", a) for i, a in enumerate(job.command)),
        *((f"job.env.{name}", value) for name, value in job.env.items()),
        ("job.workdir", job.workdir),
    ):
        if "\0" in value:
            yield refuse(
                RefusalCause.COMMAND, path, repr(value), "contains a NUL byte", "remove it: no program can receive it"
            )
    if job.workdir and not job.workdir.startswith("/"):
        yield refuse(
            RefusalCause.COMMAND, "job.workdir", job.workdir, "is not an absolute path",
            "give a path from the node's root, or leave it empty for a fresh directory",
        )  # fmt: skip


def _placed_as(job: JobSpec, context: AdmissionContext) -> JobSpec:
    """The job with what its class demands of nodes among the labels that it asks for."""
    known = context.classes.get(job.priority_class)
    if known is None or known.network is Network.HOST:
        return job
    labels = dict(asked_for(tuple(sorted(job.resources.labels.items())), known.network))
    return job.model_copy(update={"resources": job.resources.model_copy(update={"labels": labels})})


def _hardware(job: JobSpec) -> Iterator[Refusal]:
    """What a named type could not serve, whatever pool it is in. Of a share it is enough that one type can be shared."""
    why = {"torus": RefusalCause.TOPOLOGY, "mig_profile": RefusalCause.PROFILE}
    shared = any(map(vendors.sharable, job.resources.types))
    for p in vendors.problems(job.resources):
        if p.field == "share_milli" and shared:
            continue
        yield refuse(why.get(p.field, RefusalCause.TYPE), f"job.resources.{p.field}", p.value, p.problem, p.fix)


def _quota(job: JobSpec, team: str, context: AdmissionContext) -> Iterator[Refusal]:
    """What is above a limit of its team even when the team holds nothing: waiting would not help."""
    fleet, shape = context.fleet, shape_of(job)
    bounds = [(f"team {team}", own)] if (own := fleet.quotas.get(team)) is not None else []
    bounds += [(f"queue {queue}", limits) for queue, limits in fleet.tree.bounds(team)]
    if offered := tuple(name for name in shape.types if name in context.fleet.models()):
        shape = replace(shape, types=offered)
    for who, limits in bounds:
        room = context.room(limits, {}, shape, fleet.accelerators())
        if room.request is None:
            limit = room.reached[0]
            yield refuse(
                RefusalCause.QUOTA,
                "job.resources.devices",
                job.resources.devices,
                f"{who} may hold {limit.limit} at once, this job alone asks for {limit.needs}",
                f"ask for at most {limit.limit}, or have an operator raise the quota",
            )
            return
