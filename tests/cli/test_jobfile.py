"""Job files that strangers write: what is right is read as it was meant, what is wrong is told with its place and fix."""

import contextlib
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from libs.cli.jobfile import JobFileError, read_jobs
from schemas.jobs import JobSpec

DOC = Path(__file__).parents[2] / "docs/job-spec.md"
MINIMAL = "command: [python, train.py]\n"


def problems(text: str) -> list[str]:
    with pytest.raises(JobFileError) as e:
        read_jobs(text, "job.yaml")
    return str(e.value).splitlines()


def test_the_smallest_job() -> None:
    (job,) = read_jobs(MINIMAL)
    assert job.spec == JobSpec(command=("python", "train.py"))
    assert (job.key, job.team) == ("", "")


def test_secrets_are_named_in_short_ways() -> None:
    (job,) = read_jobs(MINIMAL + "secret: a\nsecrets: [b, {secret: c, file: d}]\nenv: {X: {secret: e}, Y: text}\n")
    assert [use.model_dump(exclude_none=True) for use in job.spec.secrets] == [
        {"secret": "b"},
        {"secret": "c", "file": "d"},
        {"secret": "a"},
        {"secret": "e", "env": "X"},
    ]
    assert job.spec.env == {"Y": "text"}
    assert [use.file_name for use in job.spec.secrets] == ["b", "d", "a", None]
    for wrong, field in (
        ("secrets: token\n", "secrets"),
        ("secrets: [{secret: ../x}]\n", "secrets.0.secret"),
        ("secrets: [{name: x}]\n", "secrets.0"),
        ("secret: [a]\n", "secret"),
        ("env: {X: {secret: a, more: b}}\n", "env.X"),
        ("env: {X: {secret: {a: b}}}\n", "secrets.0.secret"),
    ):
        assert any(field in line for line in problems(MINIMAL + wrong)), wrong


def test_short_forms() -> None:
    (job,) = read_jobs(MINIMAL + "key: 42\nteam: research\ngpus: gpu:h100:4@40GiB\n")
    assert (job.key, job.team) == ("42", "research")
    assert (job.spec.resources.devices, job.spec.resources.types, job.spec.resources.memory_mib) == (
        4,
        ("H100",),
        40_960,
    )
    (inside,) = read_jobs(MINIMAL + "resources: {gpus: 'H100:4', memory: 40GiB}\n")
    assert inside.spec == job.spec


def test_text_stays_as_it_is_written() -> None:
    (job,) = read_jobs(
        "name: 2024\ncommand: [run, --lr, 0.10, --on, on, --at, 12:30, 0777, 1_000]\nenv: {A: 1, B: yes, C: 2024-01-01}"
    )
    assert job.spec.name == "2024"
    assert job.spec.command == ("run", "--lr", "0.10", "--on", "on", "--at", "12:30", "0777", "1_000")
    assert job.spec.env == {"A": "1", "B": "yes", "C": "2024-01-01"}


def test_several_documents_are_several_jobs() -> None:
    jobs = read_jobs(f"---\n{MINIMAL}---\n{MINIMAL}name: second\n---\n")
    assert [job.spec.name for job in jobs] == ["job", "second"]


def test_json_is_yaml() -> None:
    assert read_jobs('{"command": ["a"], "resources": {"devices": 2}}')[0].spec.resources.devices == 2


def test_every_example_of_the_documentation_is_right() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert len(examples) == 6
    assert all(read_jobs(example) for example in examples)


WRONG = {
    # the nearest name
    MINIMAL + "nam: x": "job.yaml:2:1: nam: unknown field; did you mean 'name'?",
    MINIMAL + "gpu: 4": "job.yaml:2:1: gpu: unknown field; did you mean 'gpus'?",
    MINIMAL + "resources: {cpus: 4}": "job.yaml:2:13: resources.cpus: unknown field; did you mean 'cpu_milli'?",
    MINIMAL + "class: x": "job.yaml:2:1: class: unknown field; did you mean 'priority_class'?",
    MINIMAL + "devices: 4": "job.yaml:2:1: devices: unknown field; did you mean 'resources.devices'?",
    MINIMAL + "resources:\n  device: 4": "job.yaml:3:3: resources.device: unknown field; did you mean 'devices'?",
    MINIMAL + "resources: {topology: {levle: node}}": "did you mean 'level'?",
    MINIMAL + "resources: {roles: [{name: a, typess: [H100]}]}": "roles.0.typess: unknown field; did you mean 'types'?",
    # values
    "command: python train.py": "job.yaml:1:1: command: python train.py: not a list; write a list: [a, b]",
    "name: x": "command is empty",
    MINIMAL
    + "gpus: 4:H100": "job.yaml:2:1: gpus: '4:H100' is not a device request; write [type:]count[@memory], e.g. H100:4",
    MINIMAL + "resources: {memory: 40}": "resources.memory: '40' is not an amount of memory",
    MINIMAL + "resources: {devices: 0}": "resources.devices: 0: too small; use at least 1",
    MINIMAL + "resources: {devices: yes}": "resources.devices: yes is not a number",
    MINIMAL + "resources: {devices: 0777}": "'0777' is not a number that is read",
    MINIMAL + "resources: {devices: 12:30}": "'12:30' is not a number that is read",
    MINIMAL + f"resources: {{devices: {'9' * 5000}}}": "is not a number that is read",
    MINIMAL + "time_limit_s: .inf": "'.inf' is not a number that is read",
    MINIMAL + "time_limit_s: 2h": "time_limit_s: 2h: not a number; write it in seconds: 7200",
    MINIMAL
    + "resources: {host_memory_mib: 64GiB}": "host_memory_mib: 64GiB: not a whole number; write it in MiB: 65536",
    MINIMAL + "resources: {share_milli: 0.5}": "share_milli: 0.5: not a whole number; write it in thousandths: 500",
    MINIMAL + "retry: 3": "retry: 3: not a mapping; write a mapping of on_lost, on_failure",
    MINIMAL + "time_limit_s: soon": "time_limit_s: soon: not a number; write a number",
    MINIMAL + "priority_class: Production": "form that is not allowed; write it in small letters: production",
    MINIMAL + "pool: a_b": "pool: a_b: has characters or a form that is not allowed; use at most 63 small letters",
    MINIMAL + "gpus: {type: H100}": "is not a device request; write [type:]count[@memory]",
    # written for something else
    "apiVersion: batch/v1\nkind: Job": "job.yaml:1:1: apiVersion: unknown field; this is a Kubernetes manifest",
    '{"client_key": "a", "job": {"command": ["a"]}}': "job: unknown field; this is a message",
    "jobs: [{command: [a]}]": "jobs: unknown field; write each job as a document of its own",
    MINIMAL + "resources: 3": "resources: 3: not a mapping; write a mapping",
    MINIMAL + "env: [A]": "env: not a mapping; write a mapping",
    MINIMAL + "env: {A: null}": "env.A: null: not text; write a string",
    MINIMAL + "env: {'A B': x}": "env.A B",
    MINIMAL + "launch: both": "launch: both: not one of the allowed values; use 'per-device' or 'per-node'",
    MINIMAL + "key: ''": "key: not text of 1 to 256 characters",
    MINIMAL + "team: [a]": "team: not text of 1 to 63 characters",
    MINIMAL
    + "gpus: 4\nresources: {devices: 2}": "it says devices, and resources.devices is given as well; keep one of the two",
    MINIMAL + "gpus: 4\nresources: {gpus: 2}": "gpus stands twice",
    MINIMAL + "resources: {share_milli: 500, devices: 2}": "share_milli below 1000 shares one device",
    # not a job, not YAML, not read
    "": "there is no job in it",
    "---\n---\n": "there is no job in it",
    "- a\n- b": "several jobs are several documents",
    "just text": "a job is a mapping of fields",
    "command: [a": "not YAML",
    "command: [a]\n\tname: x": "job.yaml:2:1: not YAML",
    "command: [a]\x07": "the character '\\x07' is not allowed",
    MINIMAL + "name: x\nname: y": "job.yaml:3:1: name: the key stands twice, first in line 2; keep one",
    MINIMAL + "env: {? [a] : b}": "a key is not text",
    MINIMAL + "<<: {name: x}": "<<: unknown field",
    'command: ["\\ud800"]': "command.0: holds a NUL or half of a surrogate pair",
    'command: ["\\0"]': "command.0: holds a NUL or half of a surrogate pair",
    "a: &x [lol]\ncommand: [*x, *x]": "job.yaml:1:4: anchors and aliases (& and *) are not read",
    "command: !!python/object/apply:os.system [id]": "the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not read",
    "command: !!binary aGk=": "is not read",
    "[" * 100_000: "nested deeper than 32 levels",
    "{a: " * 40 + "}" * 40: "nested deeper than 32 levels",
    "? " * 50_000: "nested deeper than 32 levels",
    "command: [" + "a," * 30_000 + "]": "more than 20000 values",
    MINIMAL + "#" * 300_000: "at most 262144 are read",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: repr(text[:40]))
def test_wrong_files(text: str) -> None:
    assert any(WRONG[text] in line for line in problems(text)), problems(text)


def test_every_problem_of_every_document_is_told_at_once() -> None:
    told = problems("nam: x\ncommand: 3\ngpus: many\n---\n- 1\n---\ncommand: [a]\nretry: {on_lost: -1}\n")
    assert [line.split(":")[1] for line in told] == ["1", "2", "3", "5", "8"]


def test_a_very_wrong_file_is_told_briefly() -> None:
    told = problems(MINIMAL + "\n".join(f"x{i}: 1" for i in range(500)))
    assert len(told) == 51
    assert told[-1].endswith("correct these first")


NAMES = st.sampled_from(["command", "env", "resources", "gpus", "memory", "devices", "retry", "key", "x"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


@given(ANYTHING)
def test_whatever_the_file_holds_it_is_a_job_or_a_list_of_problems(value: object) -> None:
    with contextlib.suppress(JobFileError):
        assert read_jobs(yaml.safe_dump(value))
