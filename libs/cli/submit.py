"""`baton submit`: jobs from a file (`-f job.yaml`, `-f -`) or one from the command line (`--gpus H100:4 -- python x.py`)."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from libs.bus.cancel import cancel
from libs.cli import given_limit, grammar, job_options
from libs.cli.exits import Ended, Exit, UsageFault
from libs.cli.jobfile import JobRequest, read_jobs
from libs.cli.options import Output, Team, Url, UserOption
from libs.cli.output import Format, document, hint, say
from libs.cli.session import run, short
from libs.cli.submit_wait import WaitOptions, until_ended, waiting_of
from libs.client import Baton, ClientError, Submitted
from schemas.ids import job_id
from schemas.yamlfile import MAX_BYTES


def command(
    argv: Annotated[
        list[str] | None, typer.Argument(help="The command to run, after `--`.", metavar="-- COMMAND")
    ] = None,
    *,
    file: job_options.JobFileOption = None,
    gpus: job_options.GpusOption = None,
    name: Annotated[str | None, typer.Option("--name", "-J", help="A name for people.")] = None,
    priority_class: job_options.PriorityClassOption = None,
    share: job_options.ShareOption = None,
    memory: job_options.MemoryOption = None,
    cpus: job_options.CpusOption = None,
    host_memory: job_options.HostMemoryOption = None,
    mig: job_options.MigOption = None,
    topology: job_options.TopologyOption = None,
    role: job_options.RoleOption = None,
    torus: job_options.TorusOption = None,
    min_devices: job_options.MinDevicesOption = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE; may be repeated.")] = None,
    label: job_options.LabelOption = None,
    workdir: Annotated[str | None, typer.Option("--workdir", help="Working directory on the node.")] = None,
    time: job_options.TimeOption = None,
    launch: Annotated[str | None, typer.Option("--launch", help="Processes: per-device or per-node.")] = None,
    retries: Annotated[int | None, typer.Option("--retries", help="Further attempts after a failure.")] = None,
    grace: Annotated[
        str | None, typer.Option("--checkpoint-grace", help="It checkpoints on SIGUSR1 within this time.")
    ] = None,
    simulate: Annotated[
        str | None, typer.Option("--simulate", help="Run as a timer of this length on simulated devices.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Your own name for it: the same key again is the same job.")
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return when it is stored, not when it is admitted.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when it has ended, with its exit code; Ctrl-C leaves it running.")
    ] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Wait, and show meanwhile what its rank 0 writes.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Wait no longer than e.g. 30m, then exit with 6; it goes on.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file and print what would be sent.")] = False,
    pool: Annotated[str | None, typer.Option("--pool", help="The pool to run in; else admission chooses.")] = None,
    team: Team = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Ask for jobs to be run. Prints their ids; exits with 4 when admission refuses one, with every reason.

    With --wait it exits as `baton wait` does: with the job's own exit code, 7 cancelled, 8 lost with its node or device."""
    given = {
        "name": name, "class": priority_class, "workdir": workdir, "launch": launch,
        "pool": pool,
        "gpus": gpus, "share": share, "memory": memory, "cpus": cpus, "host-memory": host_memory, "mig": mig,
        "topology": topology, "role": role, "torus": torus, "min-devices": min_devices, "env": env, "label": label,
        "time": time, "retries": retries, "checkpoint-grace": grace, "simulate": simulate,
    }  # fmt: skip
    requests = requested(file, given, argv or [])
    if key is not None:
        if not key:  # of a variable that is not set: a random one would let a repeat run it twice
            raise UsageFault("--key is empty: give a name of your own for the job, or leave --key out")
        if len(requests) > 1:
            raise UsageFault("--key names one job and the file has several: write `key:` into each document")
        requests = [JobRequest(requests[0].spec, key, requests[0].team)]
    waiting = waiting_of(
        [request.spec for request in requests], output, wait=wait, logs=logs, timeout=timeout, no_wait=no_wait
    )
    if dry_run:
        for request in requests:
            _warn(request)
        document([_shown(request) for request in requests], Format.YAML if output is Format.YAML else Format.JSON)
        return
    speaker = team_of(requests, team)

    async def work(baton: Baton) -> int:
        done = await _submit(baton, requests, not no_wait, output, waiting)
        unlimited = [
            (job.job_id, r.spec.name) for job, r in zip(done, requests, strict=True) if not r.spec.time_limit_s
        ]
        if no_wait or output not in (Format.TABLE, Format.WIDE) or not (waiting or sys.stdout.isatty()):
            unlimited = []  # programs would wait for it in vain
        telling = asyncio.create_task(given_limit.tell(baton, unlimited))
        try:
            if waiting:
                return await until_ended(baton, [job.job_id for job in done], output, waiting)
            await telling
            return Exit.OK
        finally:
            await cancel(telling)

    if code := run(work, speaker, url, user=user, operator=False):
        raise Ended(code)


def requested(file: str | None, given: Mapping[str, Any], argv: list[str]) -> list[JobRequest]:
    """The jobs of a file, or the one described by options (flag -> value; None and an empty list mean not given).
    Raises UsageFault."""
    options = {flag: value for flag, value in given.items() if value not in (None, [])}
    if file is not None:
        return _from_file(file, [*(f"--{flag}" for flag in options), *(["COMMAND"] if argv else [])])
    return [_from_options(options, argv)]


def team_of(requests: list[JobRequest], team: str | None) -> str | None:
    """The one team of all `requests`; `team`: from the command line. Raises UsageFault for several."""
    teams = {team or request.team for request in requests}
    if len(teams) > 1:
        raise UsageFault(
            f"the file's jobs belong to several teams ({', '.join(sorted(t or 'none' for t in teams))}): split it"
        )
    return next(iter(teams)) or None


async def _submit(
    baton: Baton, requests: list[JobRequest], wait_admitted: bool, output: Format, waiting: WaitOptions | None
) -> list[Submitted]:
    done: list[Submitted] = []
    of_programs = output in (Format.JSON, Format.YAML) and waiting is None
    for request in requests:
        _warn(request)
        key = request.key or baton.new_key()
        try:
            submitted = await baton.submit(request.spec, key, wait_admitted=wait_admitted)
        except ClientError:
            if len(requests) > 1:
                number = len(done) + 1
                hint(
                    f"stopped at job {number} of {len(requests)}, {request.spec.name}: {number - 1} before it submitted, "
                    f"{len(requests) - number} after it not"
                )
            if done and of_programs:
                document(_told(done), output)
            raise
        except asyncio.CancelledError:  # Ctrl-C
            job = job_id(baton.team, key)
            hint(f"{job} may have been taken all the same: see `baton describe job {job}`, or `baton cancel {job}`")
            raise
        done.append(submitted)
        if waiting is not None and waiting.logs:
            hint(submitted.job_id)  # stdout is the job's
        elif output in (Format.TABLE, Format.WIDE, Format.NAME):
            say(submitted.job_id)
            if sys.stdout.isatty() and output is not Format.NAME and waiting is None and not _ended(submitted):
                state = submitted.found.state.value if submitted.found else "queued" if wait_admitted else "stored"
                hint(f"{request.spec.name} is {state}; follow it with `baton watch {short(submitted.job_id)}`")
        if request.key and (state := _ended(submitted)):
            hint(
                f"{request.spec.name} has ended before, {state}, and is not run again: its key {request.key} names that job; "
                "to run it anew, give another key"
            )
    if of_programs:
        document(_told(done), output)
    return done


def _ended(submitted: Submitted) -> str:
    """How the job ended that this submit repeats; "" if it did not."""
    return submitted.found.state.value if submitted.found and submitted.found.state.terminal else ""


def _told(done: list[Submitted]) -> list[dict[str, str | None]]:
    return [{"job_id": s.job_id, "client_key": s.client_key, "team": s.team, "ended": _ended(s) or None} for s in done]


def _warn(request: JobRequest) -> None:
    """Warns of likely secrets: a spec stays in the ledger for good."""
    from libs.core.admission.looks_secret import suspects

    if found := suspects(request.spec.env, request.spec.command):
        looks = "looks like a secret" if len(found) == 1 else "look like secrets"
        hint(
            f"warning: {request.spec.name}: {', '.join(found)} {looks}: your whole team and the operators can read it, and it "
            "stays in the ledger; `baton secret set NAME`, and name the secret in the job (secrets)"
        )


def _from_file(file: str, flags: list[str]) -> list[JobRequest]:
    """The jobs of a file; `-` is stdin. `flags`: options that may not be combined with it."""
    if flags:
        raise UsageFault(f"-f and {', '.join(flags)} exclude each other: write them into the file")
    if file == "-":
        data, name = sys.stdin.buffer.read(MAX_BYTES + 1), "stdin"
    else:
        with Path(file).open("rb") as source:
            data, name = source.read(MAX_BYTES + 1), file
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise UsageFault(f"{name}: it is not UTF-8 text ({e.reason} at byte {e.start}): save it as UTF-8") from None
    return read_jobs(text, name)


def _from_options(options: dict[str, Any], argv: list[str]) -> JobRequest:
    if not argv and "simulate" not in options:
        raise UsageFault(
            "nothing to run: give a job file with -f, or a command after `--`, e.g. baton submit --gpus 1 -- python train.py"
        )
    if len(argv) == 1 and argv[0].endswith((".yaml", ".yml", ".json")):
        raise UsageFault(
            f"{argv[0]} is a file and no command: to submit the jobs in it, write baton submit -f {argv[0]}"
        )
    if argv and "simulate" in options:
        raise UsageFault("--simulate runs a timer and no command: leave out --simulate, or the command after `--`")
    from pydantic import ValidationError

    from schemas.jobs import JobSpec
    from schemas.reasons import reasons_of

    try:
        return JobRequest(JobSpec.model_validate(_spec(options, argv)))
    except ValidationError as e:
        lines = [
            f"{_option_of(r.field)}{f' = {r.value}' if r.value else ''}: {r.problem}; {r.fix}"
            for r in reasons_of(e, model=JobSpec)
        ]
        raise UsageFault("\n".join(lines)) from None


def _option_of(field: str) -> str:
    """The option that sets a field of the spec; the field itself if there is none."""
    return f"--{_SETS[field]}" if field in _SETS else field


_SETS = {
    "name": "name", "priority_class": "class", "workdir": "workdir", "launch": "launch", "pool": "pool",
    "resources.memory_mib": "memory", "resources.cpu_milli": "cpus", "resources.host_memory_mib": "host-memory",
    "resources.mig_profile": "mig", "resources.torus": "torus", "resources.min_devices": "min-devices",
    "time_limit_s": "time", "retry.on_failure": "retries",
    "checkpoint.grace_s": "checkpoint-grace", "simulation.duration_s": "simulate",
    "resources.share_milli": "share",
}  # fmt: skip
"""Field of the spec -> the option that sets it, for fields that can be invalid although the option was readable."""


def _spec(options: dict[str, Any], argv: list[str]) -> dict[str, Any]:
    """The job spec described by the options. Raises UsageFault."""
    spec: dict[str, Any] = {"command": argv}
    resources: dict[str, Any] = {}
    for flag, value in options.items():
        try:
            _set(spec, resources, flag, value)
        except ValueError as e:
            raise UsageFault(f"--{flag}: {e}") from None
    return spec | ({"resources": resources} if resources else {})


def _set(spec: dict[str, Any], resources: dict[str, Any], flag: str, value: Any) -> None:
    """Writes one option's value into the spec, or its `resources`. Raises ValueError."""
    match flag:
        case "gpus":
            gpus = grammar.parse_gpus(value)
            resources |= {"devices": gpus.devices, "types": gpus.types}
            if gpus.memory_mib:
                resources["memory_mib"] = gpus.memory_mib
        case "share":
            resources["share_milli"] = grammar.parse_share(value)
        case "memory":
            if "memory_mib" in resources:
                raise ValueError("the @ of --gpus says the same: give one of them")
            resources["memory_mib"] = grammar.parse_memory(value)
        case "cpus":
            resources["cpu_milli"] = grammar.parse_cpus(value)
        case "host-memory":
            resources["host_memory_mib"] = grammar.parse_memory(value)
        case "mig":
            resources["mig_profile"] = value
        case "topology":
            resources["topology"] = grammar.parse_topology(value)
        case "role":
            resources["roles"] = [grammar.parse_role(item) for item in value]
        case "torus":
            box = grammar.parse_torus(value)
            if "types" in box and resources.get("types"):
                raise ValueError("--gpus names a type, too: give one of them")
            resources |= box
        case "min-devices":
            resources["min_devices"] = value
        case "label":
            resources["labels"] = grammar.parse_pairs(value)
        case "env":
            spec["env"] = grammar.parse_pairs(value)
        case "time":
            spec["time_limit_s"] = grammar.parse_duration(value)
        case "retries":
            spec["retry"] = {"on_failure": value}
        case "class":
            spec["priority_class"] = value
        case "checkpoint-grace":
            spec["checkpoint"] = {"grace_s": grammar.parse_duration(value)}
        case "simulate":
            spec["simulation"] = {"duration_s": grammar.parse_duration(value)}
        case _:
            spec[flag] = value


def _shown(request: JobRequest) -> dict[str, Any]:
    return {"team": request.team, "client_key": request.key, "job": request.spec.model_dump(mode="json")}
