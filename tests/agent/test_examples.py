"""Every example is a test: the job files can be submitted, the training saves, resumes and comes to the same end."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from libs.cli.jobfile import read_jobs
from libs.core.admission.environment import refused_names
from libs.core.state.desired import desired
from services.agent.acknowledge import Acknowledgement
from services.agent.variables import Paths, addresses_of, slots, variables
from tests.agent.conftest import until_now
from tests.core.builders import World, node
from tests.core.builders import job as admitted

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_job_file_can_be_submitted(path):
    (request,) = read_jobs(path.read_text(), path.name)
    assert request.key
    assert not refused_names(request.spec.env)
    if "-m" in request.spec.command:
        assert (ROOT / (request.spec.command[2].replace(".", "/") + ".py")).exists()


def test_the_readme_names_every_example():
    readme = (ROOT / "examples" / "README.md").read_text()
    for path in [*FILES, *(ROOT / "examples").glob("*.py")]:
        assert f"`{path.name}`" in readme


def train(folder, steps: int, resume: str = "") -> subprocess.Popen[str]:
    environment = {"BATON_CHECKPOINT_DIR": str(folder), "BATON_CHECKPOINT_FILE": str(folder / "ack.json")}
    if resume:
        environment["BATON_RESUME_REFERENCE"] = resume
    command = [sys.executable, "-u", "-m", "examples.train", "--steps", str(steps), "--step-s", "0.002"]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_preempted_training_resumes_and_ends_as_an_undisturbed_one(tmp_path):
    first, acknowledgement = train(tmp_path, 100_000), Acknowledgement(tmp_path / "ack.json")
    assert "step 10 " in first.stdout.readline()
    first.send_signal(signal.SIGUSR1)
    saved = []
    until_now(lambda: saved.append(acknowledgement.news()) or saved[-1])
    first.kill()
    first.communicate()
    checkpoint = saved[-1]
    assert checkpoint.step >= 10
    steps = checkpoint.step + 60
    resumed, _ = train(tmp_path, steps, checkpoint.reference).communicate()
    (tmp_path / "other").mkdir()
    undisturbed, _ = train(tmp_path / "other", steps).communicate()
    assert f"resumed at step {checkpoint.step}" in resumed
    assert resumed.splitlines()[-1] == undisturbed.splitlines()[-1]
    assert "done" in resumed.splitlines()[-1]


def test_the_roles_of_the_nested_example_find_each_other(tmp_path):
    """What the placer grants, the node's desired state and the agent's variables, as one: the processes meet."""
    (request,) = read_jobs((ROOT / "examples" / "roles.yaml").read_text(), "roles.yaml")
    world = World(node("a"), node("b"))
    job_id = world.submit(admitted("roles").model_copy(update={"spec": request.spec}))
    assert world.state_of(job_id) == "granted"
    commands, environments = [], []
    for name in ("a", "b"):
        for wanted in desired(world.decider.state, name, "test", 1).parts:
            for slot in slots(wanted):
                environment = variables(
                    wanted, slot, device={}, paths=Paths("/", "/", "/", "{rank}"), search_path="/bin",
                    addresses=addresses_of(wanted, frozenset({"a", "b"}), "{node}"), marker="m",
                )  # fmt: skip
                commands.append([sys.executable, *request.spec.command[1:]])
                environments.append(environment)
    assert len({environment["MASTER_PORT"] for environment in environments}) == 1, "they could not meet"
    with socket.socket() as port:  # held for them, so that nothing else on this machine has it
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port.bind(("", 0))
        own = {"MASTER_PORT": str(port.getsockname()[1])}
        ends = [
            subprocess.Popen(command, cwd=ROOT, env=environment | own, stdout=subprocess.PIPE, text=True)
            for command, environment in zip(commands, environments, strict=True)
        ]
        told = [process.communicate(timeout=60)[0].splitlines() for process in ends]
    assert [process.returncode for process in ends] == [0] * 10
    assert sorted(lines[0].split(";")[0] for lines in told) == [
        *(f"judge {n} of 2" for n in range(2)), *(f"trainer {n} of 8" for n in range(8)),
    ]  # fmt: skip
    (gathered,) = [lines[1:-1] for lines in told if len(lines) > 2]
    assert sorted(gathered) == ["trainer 0 heard: judge 0 of 2", "trainer 0 heard: judge 1 of 2"]
