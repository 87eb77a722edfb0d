"""The seccomp profile of compose's agent, as the kernel takes it: walls can be put up with it, with nothing less, and little
else."""

import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from services.agent.jobwalls import cores_are_piped
from services.agent.keeper import hindrance, walls
from services.agent.keeper.contain import PROGRAM
from services.agent.view import launcher
from tests.architecture.test_compose import beside
from tests.jail.plain import ROOT, readable_to_all
from tests.walls import agent_calls, contained

MACHINES = ("x86_64", "aarch64")
TRIAL = """
import json, os, sys
from pathlib import Path
from services.agent import view
from services.agent.jobwalls import asked
from services.agent.keeper import contain, walls
from services.agent.settings import AgentSettings
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]  # as a keeper has its own
shown = view.view_of([Path("/var/lib/baton")], AgentSettings())
print(json.dumps(walls.probe(contain.best(None), **json.loads(asked("auto", shown)))[1:]))
"""
CALLS = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def called(number, *arguments):
    return errno.errorcode[ctypes.get_errno()] if libc.syscall(number, *arguments) < 0 else "made"
def opened(*kind):
    try:
        socket.socket(*kind).close()
        return "made"
    except OSError as e:
        return errno.errorcode[e.errno]
for name, found in (
    ("bpf", called(BPF, 0, 0, 0)),
    ("clone3", called(CLONE3, 0, 0)),
    ("io_uring_setup", called(IO_URING_SETUP, 1, 0)),
    ("keyctl", called(KEYCTL, 0, -3, 1)),
    ("open_tree", called(OPEN_TREE, -100, b"/", 0)),
    ("fsopen", called(FSOPEN, b"tmpfs", 0)),
    ("names", called(UNSHARE, 0x04000000)),
    ("cgroups", called(UNSHARE, 0x02000000)),
    ("firewall", opened(socket.AF_NETLINK, socket.SOCK_RAW, 12)),
    ("routes", opened(socket.AF_NETLINK, socket.SOCK_RAW, 0)),
    ("packets", opened(socket.AF_PACKET, socket.SOCK_RAW, 0)),
    ("hypervisor", opened(socket.AF_VSOCK, socket.SOCK_STREAM, 0)),
    ("tcp", opened(socket.AF_INET, socket.SOCK_STREAM, 6)),
    ("unix", opened(socket.AF_UNIX, socket.SOCK_STREAM, 0)),
    ("users", called(UNSHARE, 0x10000000)),
):
    print(name, found)
"""
FOR_MORE = {"FOWNER", "NET_ADMIN", "SYS_PTRACE"}
"""To hand over another user's folder, for jobs without network, and to see which files other users have open."""
LET_IN = {"routes": "made", "tcp": "made", "unix": "made", "users": "made", "clone3": "ENOSYS"}


def ran(command: Sequence[str], before: Callable[[], None] | None = None) -> str:
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, preexec_fn=before)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tried(command: Sequence[str], before: Callable[[], None] | None = None) -> tuple[str, str]:
    """The tier that can be had, and why none higher."""
    tier, why = json.loads(ran(command, before))
    return tier, why


def test_the_file_is_what_the_tables_say() -> None:
    assert json.loads(agent_calls.FILE.read_text()) == agent_calls.profile(), "python -m tests.walls.agent_calls"


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_is_let_in_or_refused_for_a_reason(machine: str) -> None:
    known = agent_calls.numbers(machine)
    assert max(known.values()) <= agent_calls.LOOKED_AT, "look at what this kernel adds: is it let in or refused?"
    let_in = [name for rule in agent_calls.profile()["syscalls"] for name in rule["names"]]
    refused = {name for names in agent_calls.REFUSED.values() for name in names}
    assert not refused & set(let_in)
    assert refused | set(let_in) >= known.keys()
    everywhere = {name for each in MACHINES for name in agent_calls.numbers(each)}
    assert refused <= everywhere, "a name that no kernel has refuses nothing"


def test_of_what_dockers_profile_refuses_walls_have_what_they_need() -> None:
    """Each was taken away, in Docker itself and below. The last three are root's."""
    by_name = {name: rule for rule in agent_calls.profile()["syscalls"] for name in rule["names"]}
    assert all("includes" not in by_name[name] for name in agent_calls.OF_WALLS)
    for name in agent_calls.OF_ROOTS_WALLS:
        assert by_name[name]["includes"] == {"caps": ["CAP_SYS_ADMIN"]}


def test_what_its_program_may_call() -> None:
    numbers = agent_calls.numbers(platform.machine())
    constants = "".join(f"{name.upper()} = {numbers[name]}\n" for name in (
        "bpf", "clone3", "io_uring_setup", "keyctl", "open_tree", "fsopen", "unshare"))  # fmt: skip
    said = ran(contained.command([sys.executable, "-c", constants + CALLS]))
    assert dict(line.split() for line in said.splitlines()) == {
        name: LET_IN.get(name, "EPERM") for name in (line.split()[0] for line in said.splitlines())
    }
    assert said.count("\n") == 15


def test_walls_can_be_put_up_with_it() -> None:
    assert tried(contained.command([sys.executable, "-c", TRIAL]))[0] == walls.NAMESPACES


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("mount", "mounts are refused by a filter of system calls: a container needs seccomp=deploy/agent-calls.json"),
        (
            "unshare",
            "namespaces are refused by a filter of system calls: a container needs seccomp=deploy/agent-calls.json",
        ),
        ("clone", "Creating new namespace failed"),
        ("pivot_root", "pivot_root"),
        ("umount2", "unmount old root"),
        ("setns", "setns"),
    ],
)
def test_without_one_of_its_calls_there_are_no_walls_and_the_agent_says_which(call: str, why: str) -> None:
    assert call in agent_calls.OF_WALLS
    tier, said = tried(contained.command([sys.executable, "-c", TRIAL], without=[call]))
    assert tier == walls.NONE
    assert why in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can cover /proc")
def test_what_lies_over_proc_is_named_and_a_whole_one_that_nobody_may_enter_is_enough(tmp_path: Path) -> None:
    """As Docker covers it, and the NVIDIA toolkit; and deploy/compose.gpus.yaml."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    if elsewhere := {line[4] for line in lines if line[line.index("-") + 1] == "proc"} - {"/proc"}:
        pytest.skip(f"a whole /proc is mounted elsewhere, too, which is enough for the kernel: {sorted(elsewhere)}")
    covered = ["--ro-bind", "/proc/sys", "/proc/sys"]
    tier, why = tried(contained.command([sys.executable, "-c", TRIAL], before=covered))
    assert tier == walls.NONE
    assert "something lies over parts of /proc (/proc/sys)" in why
    closed = ["--perms", "0700", "--tmpfs", "/mnt", "--bind", "/proc", "/mnt/proc"]
    command = contained.command([sys.executable, "-c", TRIAL], before=[*covered, *closed])
    assert tried(command)[0] == walls.NAMESPACES
    look = "import os\ntry: os.listdir('/mnt/proc')\nexcept PermissionError: print('closed')"
    assert ran(contained.command([sys.executable, "-c", look], before=[*covered, *closed])) == "closed\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")
def test_root_has_the_highest_tier_with_few_rights_and_with_none_less() -> None:
    given = beside("compose.full.yaml")["services"]["agent"]["cap_add"]
    trial = [sys.executable, "-c", TRIAL]
    assert tried(contained.command(trial, rights=given)) == (walls.FULL, "")
    for one in set(given) - FOR_MORE:
        less = [name for name in given if name != one]
        assert tried(contained.command(trial, rights=less))[0] == walls.NONE, one


def test_root_without_the_right_to_mount_says_what_gives_it() -> None:
    assert hindrance.told(hindrance.NO_NAMESPACE, True, Path("/proc")).endswith("deploy/compose.full.yaml")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("sys/user/max_user_namespaces", "0\n", "sysctl user.max_user_namespaces is 0"),
        ("sys/kernel/unprivileged_userns_clone", "0\n", "sysctl kernel.unprivileged_userns_clone=1"),
        (
            "sys/kernel/apparmor_restrict_unprivileged_userns",
            "1\n",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("self/attr/current", "docker-default (enforce)\n", "AppArmor profile docker-default (enforce)"),
        ("self/status", "Seccomp:\t2\n", "seccomp=deploy/agent-calls.json"),
        ("self/attr/current", "unconfined\n", "by the kernel"),
    ],
)
def test_what_a_machine_refuses_is_named_with_what_lets_it_be(tmp_path: Path, name: str, value: str, says: str) -> None:
    """Machines of these kinds were not at hand: the files are as their kernels have them."""
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(value)
    for tried_so_far in (hindrance.NO_NAMESPACE, hindrance.NO_MOUNTS):
        assert says in hindrance.told(tried_so_far, False, tmp_path)


def test_that_cores_of_jobs_reach_a_program_of_the_machines_is_told_where_nobody_can_help_it(tmp_path: Path) -> None:
    pattern = tmp_path / "core_pattern"
    pattern.write_text("|/usr/share/apport/apport -p%p\n")
    assert cores_are_piped(pattern, hard=0, is_root=False)
    assert not cores_are_piped(pattern, hard=0, is_root=True), "root gives them one byte"
    assert not cores_are_piped(pattern, hard=1, is_root=False)
    pattern.write_text("core\n")
    assert not cores_are_piped(pattern, hard=0, is_root=False), "there are no cores in files"


@pytest.mark.skipif(not os.access(PROGRAM, os.X_OK) or not launcher(), reason="nothing puts up walls here")
def test_a_hard_limit_of_cores_of_none_leaves_the_walls_up() -> None:
    """Seen: with compose's `ulimits: core: 0`, and with LimitCORE=0 as the unit has it, an agent had no walls: one byte is more
    than none."""
    none = lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # noqa: E731
    best = walls.FULL if os.geteuid() == 0 else walls.NAMESPACES
    assert tried([sys.executable, "-c", TRIAL], none)[0] == best
    if os.geteuid() == 0:
        plain = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", sys.executable, "-c", TRIAL]
        assert tried([launcher(), *readable_to_all(), "--", *plain], none)[0] == walls.NAMESPACES
