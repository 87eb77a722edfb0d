"""The demo's load: three teams, a few hundred short jobs of many shapes, and the four parts of the story. Pure.

Everything runs as real processes, on two processors: most are `sleep`, and wide gangs start one process per node.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.jobs import CheckpointPolicy, JobSpec, Launch
from schemas.resources import Level, Resources, Topology, TopologyPolicy

RESEARCH, VISION, ASSISTANT = TEAMS = ("research", "vision", "assistant")
TRAIN = Path(__file__).parents[3] / "examples" / "train.py"

STEP_S = 0.1
STEPS = 500
SAVE_EVERY = 40
SAVE_S = 0.6
"""The gang's training: 50 s of steps, a checkpoint every 4 s, each of which takes this long to write."""
GRACE_S = 10.0
FILLERS = (16, 16, 16, 16, 8, 8, 8, 8, 4, 4, 2, 2, 2, 2)
"""Devices of the replicas that fill the fleet beside the gang: 112 of 128."""
SERVING_DEVICES = 8
SERVING_S = 7.0
WAVES = (140, 240)
"""Short jobs before and after the preemption."""
CPU_JOBS = 8


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job of a team, submitted `after_s` seconds after its wave began. Its name is also its client key."""

    team: str
    spec: JobSpec
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _LoadKind:
    """A kind of short job: its teams, devices and frequency."""

    name: str
    teams: tuple[str, ...]
    devices: int
    weight: int
    share_milli: int = 1000


_KINDS = (
    _LoadKind("notebook", (RESEARCH, VISION), 1, 14, share_milli=250),
    _LoadKind("embed", (ASSISTANT, VISION), 1, 14, share_milli=500),
    _LoadKind("evaluate", TEAMS, 1, 30),
    _LoadKind("tune", (RESEARCH, VISION), 2, 22),
    _LoadKind("finetune", TEAMS, 4, 22),
    _LoadKind("render", (VISION,), 8, 14),
    _LoadKind("pretrain", (RESEARCH, ASSISTANT), 16, 10),
)


def training() -> DemoJob:
    """The gang of the story: sixteen devices of one leaf, of the lowest class, saving every four seconds."""
    options = {"--steps": STEPS, "--step-s": STEP_S, "--save-every": SAVE_EVERY, "--save-s": SAVE_S}
    command = ("python", str(TRAIN), *(str(word) for option in options.items() for word in option))
    return DemoJob(
        RESEARCH,
        JobSpec(
            name="train-the-model",
            command=command,
            priority_class="experiment",
            resources=Resources(
                devices=16, types=("H100",), topology=Topology(level=Level.LEAF, policy=TopologyPolicy.REQUIRED)
            ),
            launch=Launch.PER_NODE,
            checkpoint=CheckpointPolicy(grace_s=GRACE_S, interval_s=SAVE_EVERY * STEP_S + SAVE_S),
        ),
    )


def fillers() -> list[DemoJob]:
    """Replicas that hold all other devices until cancelled. Their class is never preempted, so only the gang can be."""
    return [
        DemoJob(ASSISTANT, _sleeping(f"replica-{number}", 3600, devices, priority_class="serving"))
        for number, devices in enumerate(FILLERS, 1)
    ]


def serving() -> DemoJob:
    """The job for which the gang is preempted: eight devices of one node, at once."""
    topology = Topology(level=Level.NODE, policy=TopologyPolicy.REQUIRED)
    resources = Resources(devices=SERVING_DEVICES, types=("H100",), topology=topology)
    spec = _sleeping("answer-the-rush", SERVING_S, SERVING_DEVICES, priority_class="serving")
    return DemoJob(ASSISTANT, spec.model_copy(update={"resources": resources}))


def cpu_jobs() -> list[DemoJob]:
    """Work for this machine's processors, which are a device as well."""
    code = "import hashlib, time; print(hashlib.sha256(bytes(4_000_000)).hexdigest()); time.sleep(2)"
    return [
        DemoJob(
            VISION,
            JobSpec(
                name=f"preprocess-{number}",
                command=("python", "-c", code),
                resources=Resources(types=("CPU",), share_milli=500),
            ),
            after_s=1.2 * number,
        )
        for number in range(1, CPU_JOBS + 1)
    ]


def wave(number: int, jobs: int, *, over_s: float) -> Iterator[DemoJob]:
    """`jobs` short jobs at random moments within `over_s`; the same in every run."""
    chance = random.Random(number)
    moments = sorted(chance.uniform(0, over_s) for _ in range(jobs))
    for index, after_s in enumerate(moments):
        kind = chance.choices(_KINDS, [k.weight for k in _KINDS])[0]
        name = f"{kind.name}-{number}{index:03d}"
        runs_s = round(chance.uniform(1.5, 5.0), 1)
        spec = _sleeping(name, runs_s, kind.devices, share_milli=kind.share_milli)
        if kind.name == "tune" and index % 8 == 0:
            spec = spec.model_copy(update={"command": ("python", str(TRAIN), "--steps", "30", "--step-s", "0.1")})
        yield DemoJob(chance.choice(kind.teams), spec, after_s)


def _sleeping(
    name: str, runs_s: float, devices: int, *, share_milli: int = 1000, priority_class: str = "experiment"
) -> JobSpec:
    return JobSpec(
        name=name,
        command=("sleep", f"{runs_s:g}"),
        priority_class=priority_class,
        resources=Resources(devices=devices, types=("H100",), share_milli=share_milli),
        launch=Launch.PER_NODE if devices > 2 else Launch.PER_DEVICE,
    )
