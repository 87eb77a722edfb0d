"""What a job's processes see: nothing of the agent's own environment, exactly its devices, and where its gang meets."""

import subprocess
import sys

import pytest

from libs.adapters.devices.simulated import SimulatedLayer
from libs.core.admission.environment import refused_names
from schemas.nodes import Rank, RoleHosts
from services.agent.variables import BadEnvironment, Paths, addresses_of, master_port, slots, variables
from tests.agent.build import inventory, part, rank, spec

PATHS = Paths("/home", "/job", "/saves", "/ack/rank-{rank}.json")


def of(wanted, number=0, template="127.0.0.1"):
    """The variables of the part's process of rank `number`."""
    (slot,) = [slot for slot in slots(wanted) if slot.rank == number]
    return variables(
        wanted,
        slot,
        device={},
        paths=PATHS,
        search_path="/bin",
        addresses=addresses_of(wanted, frozenset(), template),
        marker="n0@x/1/job.1",
    )


def places(wanted):
    return [(slot.rank, slot.local_rank) for slot in slots(wanted)]


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "BASH_ENV", "GCONV_PATH",
     "PYTHONSTARTUP", "BATON_PART", "RANK", "MASTER_ADDR", "CUDA_MPS_PIPE_DIRECTORY", "HIP_VISIBLE_DEVICES"],
)  # fmt: skip
def test_names_that_belong_to_baton_or_the_loader_are_refused(name):
    assert refused_names({name: "x"}) == [name]
    with pytest.raises(BadEnvironment, match=name):
        of(part(spec("pass", env={name: "x"})))


def test_ordinary_names_may_be_set():
    assert refused_names(["PYTHONPATH", "OMP_NUM_THREADS", "NCCL_DEBUG", "PATH", "HOME", "CUDA_LAUNCH_BLOCKING"]) == []


def test_nothing_of_the_agents_own_environment_reaches_a_job(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "1")
    got = of(part(spec("pass", env={"LR": "0.1"})))
    assert "SECRET_OF_THE_AGENT" not in got
    assert got["LR"] == "0.1"
    assert got["PATH"] == "/bin"


def test_who_a_job_is_and_its_shell_need_no_list_of_users():
    got = of(part(spec("pass", env={"SHELL": "/bin/bash"}), team="lab-a"))
    assert [got[name] for name in ("USER", "LOGNAME", "SHELL")] == ["lab-a", "lab-a", "/bin/bash"]
    assert of(part(spec("pass")))["SHELL"] == "/bin/sh"


@pytest.mark.parametrize("said", [{"LANG": "de_DE.UTF-8"}, {"LC_ALL": "C"}, {"LC_CTYPE": "en_US.UTF-8"}])
def test_a_jobs_own_locale_is_the_only_one(said):
    got = of(part(spec("pass", env=said)))
    assert {name: value for name, value in got.items() if name == "LANG" or name.startswith("LC_")} == said


def test_what_says_no_locale_has_utf8_as_python_and_bash_read_it():
    got = of(part(spec("pass", env={"LC_TIME": "C"})))
    assert (got["LC_CTYPE"], got["LC_TIME"]) == ("C.UTF-8", "C")
    word = "ü€"
    counted = subprocess.run(["/bin/bash", "-c", 'echo "${#1}"', "-", word], env=got, capture_output=True, check=True)
    assert counted.stdout == b"2\n"
    script = "import locale, sys; print(locale.getpreferredencoding(False), sys.getfilesystemencoding(), sys.argv[1])"
    told = subprocess.run([sys.executable, "-c", script, word], env=got, capture_output=True, check=True)
    assert told.stdout.decode().split() == ["UTF-8", "utf-8", word]


def test_rendezvous_of_one_process_per_device():
    ranks = rank("n1-gpu0", number=8), rank("n1-gpu1", number=9)
    wanted = part(spec("pass"), *ranks, world_size=16, node_rank=1, nodes=("n0", "n1"))
    assert places(wanted) == [(8, 0), (9, 1)]
    got = of(wanted, 9)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES", "MASTER_ADDR")
    assert [got[n] for n in names] == ["9", "16", "1", "2", "1", "2", "127.0.0.1"]
    assert got["BATON_CHECKPOINT_FILE"] == "/ack/rank-9.json"


def test_rendezvous_of_one_process_per_node():
    ranks = rank("n1-gpu0", number=8), rank("n1-gpu1", number=9)
    wanted = part(spec("pass", launch="per-node"), *ranks, world_size=16, node_rank=1, nodes=("n0", "n1"))
    assert places(wanted) == [(1, 0)]
    got = of(wanted, 1)
    assert [got[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NPROC_PER_NODE")] == ["1", "2", "1", "2"]


def test_the_gangs_port_is_the_same_everywhere_and_another_for_the_next_attempt():
    assert master_port("job-a", 1) == master_port("job-a", 1) != master_port("job-a", 2)
    assert all(20_000 <= master_port("job-a", n) < 30_000 for n in range(200))


def test_the_gang_meets_on_loopback_only_when_it_is_all_here():
    wanted = part(nodes=("n0", "n1"))
    assert addresses_of(wanted, frozenset({"n0", "n1"}), "{node}")["n0"] == "127.0.0.1"
    assert addresses_of(wanted, frozenset({"n1"}), "{node}.gpu.local")["n0"] == "n0.gpu.local"


TRAINER, JUDGE = RoleHosts(name="trainer", devices=4, nodes=(0, 1)), RoleHosts(name="judge.v2", devices=2, nodes=(1, 2))
"""Ranks 0 and 1 on n0, 2 and 3 on n1 train; 4 on n1 and 5 on n2 judge."""


def nested_part(launch="per-device"):
    """What n1 gets."""
    ranks = [
        Rank(rank=n, device=f"n1-gpu{n}", epoch=1, milli=1000, memory_mib=1, role=role, role_rank=at)
        for n, role, at in ((2, "trainer", 2), (3, "trainer", 3), (4, "judge.v2", 0))
    ]
    where = {"world_size": 6, "node_rank": 1, "nodes": ("n0", "n1", "n2")}
    return part(spec("pass", launch=launch), *ranks, **where, roles=(TRAINER, JUDGE))


def test_each_process_of_a_nested_gang_is_told_its_role_and_where_all_roles_are():
    got = [of(nested_part(), number, "{node}.local") for number in (3, 4)]
    told = [[one[f"BATON_ROLE{name}"] for name in ("", "_RANK", "_WORLD_SIZE")] for one in got]
    assert told == [["trainer", "3", "4"], ["judge.v2", "0", "2"]]
    for one in got:
        assert one["BATON_ROLE_HOSTS_TRAINER"] == "n0.local,n1.local"
        assert one["BATON_ROLE_HOSTS_JUDGE_V2"] == "n1.local,n2.local"
    assert not [name for name in of(part(spec("pass"))) if "ROLE" in name]


def test_a_node_that_serves_two_roles_has_a_process_for_each_which_sees_only_its_devices():
    wanted = nested_part("per-node")
    assert [[r.device for r in slot.devices] for slot in slots(wanted)] == [["n1-gpu2", "n1-gpu3"], ["n1-gpu4"]]
    trains, judges = of(wanted, 1), of(wanted, 2)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NPROC_PER_NODE", "BATON_ROLE_RANK",
             "BATON_ROLE_WORLD_SIZE")  # fmt: skip
    assert [trains[n] for n in names] == ["1", "4", "0", "2", "2", "1", "2"]
    assert [judges[n] for n in names] == ["2", "4", "1", "2", "1", "0", "2"]


def test_what_to_resume_from_is_told():
    got = of(part(spec("pass"), attempt=2, resume={"step": 70, "reference": "ckpt-70"}))
    assert (got["BATON_RESUME_STEP"], got["BATON_RESUME_REFERENCE"], got["BATON_ATTEMPT"]) == ("70", "ckpt-70", "2")
    assert "BATON_RESUME_STEP" not in of(part(spec("pass")))


def test_a_share_is_told_to_mps_and_to_the_job():
    layer = SimulatedLayer(inventory().devices)
    share = layer.environment((rank("n0-gpu3", milli=250),))
    assert share["CUDA_VISIBLE_DEVICES"] == "3"
    assert share["BATON_SHARE_MILLI"] == "250"
    assert share["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert share["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1024M"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in layer.environment((rank("n0-gpu3"),))
