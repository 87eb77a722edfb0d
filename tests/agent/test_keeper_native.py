"""The program that holds attempts, told and heard as the keeper does it: what it starts, and what it makes of anything else."""

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from services.agent.app import make_app
from services.agent.keeper import contain, find, spec, zygote
from services.agent.keeper.spec import BadWords
from services.agent.keeper.zygote import Zygote
from services.agent.settings import AgentSettings
from services.agent.state import folder_in
from tests.agent.conftest import FAR_S, until_now

U32 = struct.Struct("=I")


class Started:
    """An attempt, and what was said of it."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid, self.sock = pid, sock
        self.said: list[bytes] = []

    def hear(self) -> bytes:
        said = self.sock.recv(spec.LARGEST)
        if said:
            self.said.append(said)
        return said

    def up(self) -> None:
        assert self.hear()[0] == spec.STARTED

    def ended(self) -> dict[int, int]:
        """Exit codes, once it is gone. It has ended by itself, whatever it was asked for."""
        while self.hear():
            pass
        self.sock.close()
        _, status = os.waitpid(self.pid, 0)
        assert status == 0
        assert self.said[-1][0] == spec.GONE
        found: dict[int, int] = {}
        for said in self.said:
            if said[0] in (spec.EXITED, spec.GONE):
                found |= spec.codes(said)
        return found

    def failure(self) -> dict[str, object]:
        assert self.ended() == {}
        return spec.failure(self.said[0])


@pytest.fixture
def program():
    with closing(Zygote("baton-test", contain.NONE)) as made:
        yield made


@pytest.fixture
def told(tmp_path):
    def message(*script: str, count: int = 1, **more: object) -> dict[str, object]:
        return {
            "command": ["/bin/sh", "-c", *script],
            "workdir": str(tmp_path),
            "log_limit": 1000,
            "ranks": [{"rank": n, "environment": {}, "log": str(tmp_path / f"{n}.log")} for n in range(count)],
        } | more

    return message


@pytest.fixture
def run(program, told):
    def running(*script: str, **more: object) -> Started:
        return Started(*program.spawn(spec.attempt(told(*script, **more))))

    return running


# ------------------------------------------------------------------------------------------------------- what it holds


def test_output_is_kept_byte_for_byte(run, tmp_path):
    assert run(r"printf '\033[31mred\377\n'; printf 'and this' >&2").ended() == {0: 0}
    assert (tmp_path / "0.log").read_bytes() == b"\x1b[31mred\xff\nand this"


def test_output_beyond_the_limit_is_cut_with_a_line_that_says_so_and_the_job_goes_on(run, tmp_path):
    assert run("head -c 300000 /dev/zero | tr '\\0' x; exit 3", log_limit=100).ended() == {0: 3}
    assert (tmp_path / "0.log").read_bytes() == (
        b"x" * 100 + b"\n[baton] output cut here: the limit of 100 bytes is reached\n"
    )


def test_a_log_that_is_a_link_is_not_written_through(run, tmp_path):
    (tmp_path / "0.log").symlink_to(tmp_path / "elsewhere")
    failure = run("echo no").failure()
    assert (failure["errno"], failure["filename"]) == (40, str(tmp_path / "0.log"))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("file", "is_told"), [("cpu.shares", "3072"), ("cpu.weight", "300")])
def test_a_group_has_its_weight_as_its_version_counts(run, tmp_path, file, is_told):
    """Files play the kernel's part."""
    for name in (file, "cgroup.procs"):
        (tmp_path / name).touch()
    assert run("true", cpu={"group": str(tmp_path), "weight": 300}).ended() == {0: 0}
    assert ((tmp_path / file).read_text(), (tmp_path / "cgroup.procs").read_text()) == (is_told, "0")


def test_one_group_of_version_2_holds_to_all(run, tmp_path):
    for name in ("memory.max", "pids.max", "cpu.weight", "cgroup.procs"):
        (tmp_path / name).touch()
    group = {"group": str(tmp_path), "bytes": 5_000_000, "most": 7, "weight": 300}
    assert run("true", memory=group, pids=group, cpu=group).ended() == {0: 0}
    told = [(tmp_path / name).read_text() for name in ("memory.max", "pids.max", "cpu.weight", "cgroup.procs")]
    assert told == ["5000000", "8", "300", "0"]


def test_a_group_without_weights_is_named(run, tmp_path):
    failure = run("true", cpu={"group": str(tmp_path), "weight": 300}).failure()
    assert (failure["errno"], failure["filename"]) == (2, str(tmp_path))


def test_each_rank_has_its_own_code_signal_and_environment(run, tmp_path):
    ranks = [
        {"rank": n, "environment": {"N": str(n)}, "log": str(tmp_path / f"{n}.log")} for n in (3, 5, 4_000_000_000)
    ]
    held = run("trap 'exit 9' USR1; echo $N; while :; do sleep 0.01; done", ranks=ranks)
    held.up()
    until_now(lambda: all((tmp_path / f"{n}.log").read_text() == f"{n}\n" for n in (3, 5, 4_000_000_000)))
    held.sock.send(spec.signals(signal.SIGUSR1, [5], False))
    assert spec.codes(held.hear()) == {5: 9}
    held.sock.send(spec.signals(signal.SIGTERM, [4_000_000_000, 77], True))
    assert spec.codes(held.hear()) == {4_000_000_000: -signal.SIGTERM}
    held.sock.send(spec.KILL)
    assert held.ended()[3] == -signal.SIGKILL


def test_it_starts_whichever_descriptors_its_keeper_has_free(told):
    """Its requests come on 3, where the program lay when the keeper had that free."""
    kept = fcntl.fcntl(3, fcntl.F_DUPFD_CLOEXEC, 4) if os.path.exists("/proc/self/fd/3") else None
    try:
        if kept is not None:
            os.close(3)
        with closing(Zygote("baton-test", contain.NONE)) as program:
            held = Started(*program.spawn(spec.attempt(told("exit 7"))))
            assert held.ended() == {0: 7}
    finally:
        if kept is not None:
            os.dup2(kept, 3, inheritable=False)
            os.close(kept)


@pytest.mark.parametrize("kind", [contain.SUBREAPER, contain.NAMESPACE])
def test_when_the_keeper_is_gone_nothing_is_left(told, tmp_path, kind):
    if not contain.works(kind):
        pytest.skip("no namespaces here")
    with closing(Zygote("baton-test", kind)) as program:
        script = f"setsid sh -c 'sleep 600; : {tmp_path}' & (setsid sleep 600 &) ; echo up; sleep 600"
        held = Started(*program.spawn(spec.attempt(told(script))))
        held.up()
        until_now(lambda: (tmp_path / "0.log").read_text() == "up\n")
        held.sock.close()
        assert os.waitpid(held.pid, 0)[1] == 0, "it has seen its last child end"
    assert not [one for one in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in read(one)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_signals_of_the_keepers_are_not_the_jobs(run, tmp_path):
    """What it ignores, and what waits, a program does not find so."""
    assert run("grep -E 'Sig(Blk|Ign)' /proc/self/status").ended() == {0: 0}
    assert {line.split()[1] for line in (tmp_path / "0.log").read_text().splitlines()} == {"0" * 16}


def test_a_folder_of_secrets_goes_with_the_attempt_and_nothing_beside_it(run, tmp_path):
    inner = tmp_path / "of" / "mine" / "deep" / "deeper"
    inner.mkdir(parents=True)
    (tmp_path / "of" / "another").mkdir()
    (tmp_path / "kept").write_text("kept")
    for n in range(300):
        (inner / f"{'long' * 20}-{n}").write_text("secret")
        (inner / f"folder-{n}").mkdir()
    (inner.parent / "link").symlink_to(tmp_path / "kept")
    (inner.parent / "to-a-folder").symlink_to(tmp_path / "of" / "another")
    assert run("true", remove=str(tmp_path / "of" / "mine")).ended() == {0: 0}
    assert [one.name for one in (tmp_path / "of").iterdir()] == ["another"]
    assert (tmp_path / "kept").read_text() == "kept"


def test_a_program_is_found_as_a_shell_finds_it(run, tmp_path):
    for folder, mode in (("denied", 0o600), ("found", 0o700)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "it").write_text("#!/bin/sh\nexit 7\n")
        (tmp_path / folder / "it").chmod(mode)
    (tmp_path / "folder" / "it").mkdir(parents=True)

    def with_path(*folders: str) -> Started:
        ranks = [{"rank": 0, "environment": {"A": "", "PATH": ":".join(folders)}, "log": str(tmp_path / "log")}]
        return run(command=["it"], ranks=ranks)

    names = [str(tmp_path / name) for name in ("folder", "denied", "found")]
    assert with_path("/not/there", *names).ended() == {0: 7}
    assert with_path("", "found").ended() == {0: 7}, "relative to the working folder"
    assert with_path(*names[:2]).failure()["errno"] == 13
    assert with_path("x" * 5000, names[0]).failure() == {"errno": 2, "error": "", "filename": "it"}
    assert run("true", workdir="/not/there").failure()["filename"] == "/not/there"


def test_what_is_wrong_with_its_groups_is_said(run, tmp_path):
    (procs := tmp_path / "group" / "cgroup.procs").mkdir(parents=True)
    failure = run("true", group=str(procs.parent)).failure()
    assert (failure["errno"], failure["filename"]) == (21, str(procs))
    assert run("true", memory={"group": "/proc/none", "bytes": 1}).failure()["filename"] == "/proc/none"


def test_its_output_is_made_before_it_is_in_its_groups(run, tmp_path):
    """What the kernel keeps of a file that is made would hold the group of its memory when nothing of the job is left."""
    assert run("true", memory={"group": "/proc/none", "bytes": 1}).failure()["errno"]
    assert (tmp_path / "0.log").exists()


def test_those_that_were_started_before_one_that_could_not_be_are_ended(run, tmp_path):
    def rank(number: int, path: str) -> dict[str, object]:
        return {"rank": number, "environment": {"PATH": path}, "log": str(tmp_path / "log")}

    held = run(command=["sleep", "600"], ranks=[rank(0, "/usr/bin:/bin"), rank(1, "/not/there")])
    assert held.ended() == {0: -signal.SIGKILL}
    assert spec.failure(held.said[0])["filename"] == "sleep"


# ---------------------------------------------------------------------------------------------------- what it is told


def test_a_spec_of_any_size_is_taken_or_refused(run, tmp_path):
    ranks = [
        {"rank": n, "environment": {f"V{i}": "x" * 10_000 for i in range(40)}, "log": str(tmp_path / f"{n}.log")}
        for n in range(4)
    ]
    assert run("env | wc -c", ranks=ranks, log_limit=100).ended() == dict.fromkeys(range(4), 0)
    assert [int((tmp_path / f"{n}.log").read_text()) > 400_000 for n in range(4)] == [True] * 4
    assert run("true", "x" * 200_000).failure()["errno"] == 7, "the kernel's own bound of one argument"
    assert run("true", *["x" * 100_000] * 180).failure()["error"] == "no spec came that could be one"


def test_a_spec_that_is_cut_or_changed_anywhere_ends_its_own_attempt_at_most(program, told):
    """Every length of it, and every place with numbers that count, measure or are too much. The zygote forks on."""
    whole = spec.attempt(told("exit 0", remove="", count=2))
    zygote = None
    for end in range(len(whole)):
        assert Started(*program.spawn(whole[:end] or b"\0")).failure()["errno"] == 22, end
        zygote = zygote or program.pid
    assert Started(*program.spawn(whole + b"\0")).failure()["filename"] == "end"
    for at in range(len(whole) - 4):
        for number in (0xFFFF_FFFF, U32.unpack_from(whole, at)[0] + 1 & 0xFFFF_FFFF):
            changed = bytearray(whole)
            U32.pack_into(changed, at, number)
            Started(*program.spawn(bytes(changed))).ended()
    assert program.pid == zygote
    assert Started(*program.spawn(whole)).ended() == {0: 0, 1: 0}


def test_a_zygote_that_is_asked_for_nothing_that_it_knows_says_so_and_forks_on(program, run):
    run("true").ended()
    first, sock = program.pid, program._sock
    for message, descriptors in (
        (b"\x01", []),
        (b"\x05", [0]),
        (b"\xff", [0]),
        (b"\x01\x01", [0]),
        (b"\x01", [0, 1, 2]),
    ):
        socket.send_fds(sock, [message], descriptors)
        assert sock.recv(100) == struct.pack("=i", -22)
    assert len(os.listdir(f"/proc/{first}/fd")) == 4, "it keeps nothing of what it was given"
    assert run("true").ended() == {0: 0}
    assert program.pid == first


def test_root_behind_walls_is_refused(program, told):
    walls = {
        "args": [],
        "namespaces": ["mnt"],
        "root": True,
        "uid": 0,
        "gid": 0,
        "processes": 9,
        "files": 9,
        "oom_score": 0,
    }
    assert Started(*program.spawn(spec.attempt(told("true", walls=walls)))).failure()["filename"] == "uid"
    walls |= {"uid": 7, "gid": 7}
    failure = Started(*program.spawn(spec.attempt(told("true", walls=walls)))).failure()
    assert failure["error"] == "walls need a pid namespace"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"command": ["a\0b"]}, "embedded null byte"),
        ({"workdir": "a\0b"}, "embedded null byte"),
        ({"ranks": [{"rank": 0, "environment": {"A": "b\0C=d"}, "log": "x"}]}, "embedded null byte"),
        ({"ranks": [{"rank": 0, "environment": {"A=B": "c"}, "log": "x"}]}, "illegal environment variable name"),
        ({"ranks": [{"rank": -1, "environment": {}, "log": "x"}]}, "not understood"),
        ({"ranks": []}, "0 ranks"),
        ({"command": ["\ud800"]}, "surrogates not allowed"),
        ({"log_limit": "much"}, "not understood"),
        ({"walls": {"root": True}}, "not understood"),
    ],
)
def test_a_start_that_means_nothing_is_refused_before_anything_is_forked(told, wrong, problem):
    with pytest.raises(ValueError, match=problem):
        spec.attempt(told("true") | wrong)


@pytest.mark.parametrize("said", [b"x123", b"g" + bytes(7), b"f", b"f123", b"f" + bytes(4)])
def test_what_no_shim_says_is_not_taken(said):
    with pytest.raises(BadWords):
        (spec.failure if said[:1] == b"f" else spec.codes)(said)


WITHOUT = (
    "from services.agent.keeper import zygote; zygote.PROGRAM = '/nowhere/baton-shim'; import services.agent.__main__"
)


def test_without_the_program_an_agent_of_a_machine_does_not_start_and_says_what_to_do(tmp_path):
    """It waited for the broker, then for a job, and each job that came failed."""
    environment = {
        "PATH": os.environ["PATH"],
        "BATON_STATE_DIR": str(tmp_path),
        "BATON_AGENT_DEVICES": "cpu",
        "BATON_INSECURE": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT], env=environment, capture_output=True, text=True, timeout=FAR_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("agent: /nowhere/baton-shim is missing")
    assert "in a checkout run ./dev, elsewhere install Baton's wheel for this processor" in ended.stderr


def test_an_agent_whose_keeper_still_has_the_program_starts_without_it(tmp_path, monkeypatch):
    settings = AgentSettings(state_dir=tmp_path, devices="cpu", insecure=True)
    folder = folder_in(tmp_path)
    folder.mkdir()
    with closing(find.start(folder, contain.NONE, "").sock):
        monkeypatch.setattr(zygote, "PROGRAM", "/nowhere/baton-shim")
        make_app(settings)
    find.kill(folder)
    with pytest.raises(find.NoKeeper, match="is missing"):
        make_app(settings)
