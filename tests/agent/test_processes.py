"""Parts as real processes: started, watched, saved, stopped; reported gone only when nothing of them is left."""

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from libs.ports.timerslack import EXACT_NS, SHARED_NS, set_slack
from schemas.attempts import Category
from schemas.inbox import CheckpointTaken, ProgressSeen, Released, Started
from schemas.jobs import CheckpointPolicy
from services.agent import checkpoints, processes
from services.agent.keeper.clock import now
from services.agent.processes import ProcessPart
from services.agent.reconcile import Phase
from tests.agent.build import part, rank, spec
from tests.agent.conftest import until

FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(600)"

STUBBORN_DAEMON = """
import os, signal, sys, time
told, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(s, signal.SIG_IGN)
        print("daemon", os.getpid(), flush=True)
        os.write(tell, b"x")
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(told, 1)
"""

SAVES = """
import json, os, signal, sys, time
step = int(os.environ.get("BATON_RESUME_STEP", "0"))
def save(*_):
    global step
    step += 1  # no two saves are alike, however little time the job has had between them
    file = os.environ["BATON_CHECKPOINT_FILE"]
    with open(file + ".new", "w") as out:
        json.dump({"step": step, "reference": "ckpt-%d" % step}, out)
    os.rename(file + ".new", file)
    print("saved", step, flush=True)
signal.signal(signal.SIGUSR1, save)
print("up", flush=True)
while True:
    step += 1
    time.sleep(0.01)
"""


async def test_output_environment_and_exit_code(place):
    code = "import os, sys; print(os.environ['RANK'], os.getcwd()); print('oops', file=sys.stderr); sys.exit(7)"
    wanted = part(spec(code))
    place.start(wanted)
    released = await place.released()
    assert [type(s) for s in place.seen] == [Started, Released]
    assert (released.exit_code, released.own_exit) == (7, True)
    assert released.reason == "rank 0 ended with exit code 7"
    assert sorted(place.log(wanted).splitlines()) == [f"0 {place.root / f'{wanted.job_id}.1'}", "oops"]


async def test_a_gang_has_one_process_per_device(place):
    ranks = [rank(f"n0-gpu{i}", number=i) for i in range(4)]
    code = "import os; print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'CUDA_VISIBLE_DEVICES')))"
    wanted = part(spec(code), *ranks)
    place.start(wanted)
    assert (await place.released()).exit_code == 0
    assert [place.log(wanted, i).strip() for i in range(4)] == [f"{i} 4 {i} 0,1,2,3" for i in range(4)]


async def test_the_first_failure_ends_the_other_ranks(place):
    code = f"import os, sys\nif os.environ['RANK'] == '1': sys.exit(9)\n{FOREVER}"
    place.start(part(spec(code, stop_grace_s=0.2), rank("n0-gpu0"), rank("n0-gpu1", number=1)))
    released = await place.released()
    assert (released.exit_code, released.own_exit, released.reason) == (9, True, "rank 1 ended with exit code 9")


async def test_a_signal_is_128_plus_its_number(place):
    place.start(part(spec("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")))
    released = await place.released()
    assert (released.exit_code, released.reason) == (137, "rank 0 was ended by SIGKILL")


async def test_a_fault_of_its_hardware_is_unproven_where_only_its_output_says_so(place):
    wanted = part(spec("print('RuntimeError: GPU is lost'); raise SystemExit(1)"))
    place.start(wanted)
    said = await place.released()
    assert (said.category, said.unproven) == (Category.HARDWARE, True), "whoever writes the output writes what he likes"
    place.seen.clear()
    place.start(part(spec("raise SystemExit(1)"))).launch.silent_devices = lambda: ["n0-gpu0"]
    silent = await place.released()
    assert (silent.category, silent.unproven) == (Category.HARDWARE, False)


async def test_stopping_is_not_an_exit_of_its_own_even_with_code_0(place):
    polite = f"import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n{FOREVER}"
    wanted = part(spec(polite))
    made = place.start(wanted)
    await place.says(wanted, "up")
    made.stop()
    released = await place.released()
    assert (released.exit_code, released.own_exit) == (0, False)


async def test_a_job_that_ignores_sigterm_is_killed_after_its_grace(place):
    deaf = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{FOREVER}"
    wanted = part(spec(deaf, stop_grace_s=0.2))
    made = place.start(wanted)
    await place.says(wanted, "up")
    made.stop()
    assert (await place.released()).exit_code == 137


async def test_a_daemon_that_detached_and_ignores_signals_is_gone_before_the_release(place):
    wanted = part(spec(STUBBORN_DAEMON + FOREVER, stop_grace_s=0.2))
    made = place.start(wanted)
    await place.says(wanted, "up")
    assert len(place.processes(wanted)) == 2
    made.stop()
    await place.released()
    assert not place.processes(wanted)


async def test_what_a_finished_job_left_behind_is_gone_before_the_release(place):
    wanted = part(spec(STUBBORN_DAEMON))
    place.start(wanted)
    released = await place.released()
    assert (released.exit_code, released.own_exit) == (0, True)
    assert "daemon" in place.log(wanted)
    assert not place.processes(wanted)


async def test_a_checkpoint_is_acknowledged_then_the_job_is_stopped(place):
    wanted = part(spec(SAVES, checkpoint=CheckpointPolicy(grace_s=20)), resume={"step": 1000, "reference": "old"})
    made = place.start(wanted)
    await place.says(wanted, "up")
    made.save()
    released = await place.released()
    taken = next(s for s in place.seen if isinstance(s, CheckpointTaken))
    assert taken.checkpoint.step >= 1000
    assert taken.checkpoint.reference == f"ckpt-{taken.checkpoint.step}"
    assert not released.own_exit
    assert place.seen[-1] is released


async def test_checkpoints_that_a_job_takes_by_itself_are_reported(place):
    code = f"import os\nopen('x', 'w').write('{json.dumps({'step': 5, 'reference': 'r'})}')\n"
    code += f"os.rename('x', os.environ['BATON_CHECKPOINT_FILE'])\n{FOREVER}"
    place.start(part(spec(code, checkpoint=CheckpointPolicy())))
    await until(lambda: any(isinstance(s, CheckpointTaken) for s in place.seen))
    assert [type(s) for s in place.seen] == [Started, CheckpointTaken]


ALL_THE_TIME = SAVES.replace("    time.sleep(0.01)", "    save()\n    time.sleep(0.05)")


def saved(place) -> list[int]:
    return [s.checkpoint.step for s in place.seen if isinstance(s, CheckpointTaken)]


async def test_a_job_that_saves_all_the_time_is_told_of_at_times_and_of_its_last_word_at_once(place, monkeypatch):
    """Seen: four records a second for ever, of one job."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_LEAST_S", 1000.0)
    wanted = part(spec(ALL_THE_TIME, checkpoint=CheckpointPolicy(grace_s=20)))
    made = place.start(wanted)
    await place.says(wanted, "saved 60")
    (first,) = saved(place)
    made.save()
    await place.released()
    assert saved(place)[-1] >= 60 > first


async def test_what_a_job_saved_last_is_told_with_its_end_however_it_ends(place, monkeypatch):
    """Seen: what was saved within ten seconds before the end of a lease, or before a job failed, was lost."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_LEAST_S", 1000.0)
    fails = part(spec(f"{ALL_THE_TIME}    step == 40 and sys.exit(3)\n", checkpoint=CheckpointPolicy()))
    place.start(fails)
    assert (await place.released()).exit_code == 3
    assert [type(seen) for seen in place.seen[-2:]] == [CheckpointTaken, Released], "in one message"
    assert saved(place)[-1] == 40
    place.seen.clear()
    killed = part(spec(ALL_THE_TIME, checkpoint=CheckpointPolicy()), rank("n0-gpu1"))
    made = place.start(killed)
    await place.says(killed, "saved 60")
    await made.kill()
    assert saved(place)[-1] >= 60


async def test_the_answer_of_a_job_whose_lease_is_in_danger_is_heard_at_once(place, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_LEAST_S", 1000.0)
    wanted = part(spec(SAVES, checkpoint=CheckpointPolicy()))
    made = place.start(wanted)
    await place.says(wanted, "up")
    for count in (1, 2):
        made.save_early()
        await until(lambda count=count: len(saved(place)) == count)
    assert made.phase is Phase.RUNNING


async def test_without_an_acknowledgement_the_job_is_stopped_at_the_end_of_its_grace(place):
    deaf = f"import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n{FOREVER}"
    wanted = part(spec(deaf, checkpoint=CheckpointPolicy(grace_s=0.3), stop_grace_s=0.2))
    made = place.start(wanted)
    await place.says(wanted, "up")
    made.save()
    released = await place.released()
    assert not any(isinstance(s, CheckpointTaken) for s in place.seen)
    assert not released.own_exit


async def test_work_that_finishes_while_it_is_asked_to_save_has_finished(place):
    done = f"import signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n{FOREVER}"
    wanted = part(spec(done, checkpoint=CheckpointPolicy(grace_s=20)))
    made = place.start(wanted)
    await place.says(wanted, "up")
    made.save()
    released = await place.released()
    assert (released.exit_code, released.own_exit) == (0, True)


async def test_half_written_acknowledgements_are_not_believed(place):
    code = f"import os\nopen(os.environ['BATON_CHECKPOINT_FILE'], 'w').write('{{\"step\": 5')\n{FOREVER}"
    wanted = part(spec(code, checkpoint=CheckpointPolicy(grace_s=0.3), stop_grace_s=0.1))
    made = place.start(wanted)
    await place.says(wanted, "up")
    made.save()
    await place.released()
    assert [type(s) for s in place.seen] == [Started, Released]


async def test_a_command_that_does_not_exist_is_named(place):
    place.start(part(spec("x", command=("no-such-program", "--fast"))))
    released = await place.released()
    assert [type(s) for s in place.seen] == [Released]
    assert (released.exit_code, released.own_exit) == (127, True)
    assert "could not start 'no-such-program': No such file or directory" in released.reason


async def test_a_working_directory_that_does_not_exist_is_named(place):
    place.start(part(spec("pass", workdir="/no/such/folder")))
    assert "working directory '/no/such/folder' does not exist on this node" in (await place.released()).reason


@pytest.mark.parametrize(
    ("text", "mode", "exit_code", "why"),
    [
        (None, 0o755, 126, "it is a directory"),
        ("#!/bin/sh", 0o644, 126, "it is not executable for this job"),
        (
            "echo no first line",
            0o755,
            126,
            "it is no program for this machine, and no script either: its first line does",
        ),
        ("", 0o755, 126, "it is no program for this machine, and no script either: its first line does"),
        ("#!/no/such/interpreter", 0o755, 127, "it is there, but the interpreter that it names is not"),
        ("#!/bin/sh\r\n", 0o755, 127, "it is there, but the interpreter that it names is not"),
    ],
    ids=["a directory", "not executable", "no first line", "empty", "no interpreter", "written elsewhere"],
)
async def test_a_file_that_is_no_program_is_named_with_what_it_lacks(place, tmp_path, text, mode, exit_code, why):
    file = tmp_path / "job"
    if text is None:
        file.mkdir()
    else:
        file.write_text(text)
    file.chmod(mode)
    place.start(part(spec("x", command=(str(file),))))
    released = await place.released()
    assert (released.exit_code, released.own_exit) == (exit_code, True)
    assert f"could not start {str(file)!r}: {why}" in released.reason


async def test_a_program_that_is_found_and_may_not_be_executed_is_named(place, tmp_path):
    (tmp_path / "job").write_text("#!/bin/sh")
    place.start(part(spec("x", command=("job",), env={"PATH": str(tmp_path)})))
    assert "could not start 'job': it is in PATH, and not executable for this job" in (await place.released()).reason


async def test_a_working_directory_that_is_a_file_is_named(place, tmp_path):
    (tmp_path / "file").touch()
    place.start(part(spec("pass", workdir=str(tmp_path / "file"))))
    assert f"working directory {str(tmp_path / 'file')!r} is no folder" in (await place.released()).reason


@pytest.mark.parametrize(
    "then",
    [
        "os.kill(os.getpid(), signal.SIGCHLD)\nsys.exit(5)",
        "os.execv('/bin/sh', ['sh', '-c', 'exit 5'])",
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(600)",
    ],
    ids=["a signal", "a program", "a signal that it handles"],
)
async def test_a_job_that_asks_its_parent_to_trace_it_keeps_its_exit_code(place, then):
    """It stops at each signal, and whenever it executes a program, until its tracer lets it go on."""
    wanted = part(spec(f"import ctypes, os, signal, sys, time\nprint(ctypes.CDLL(None).ptrace(0, 0, 0, 0))\n{then}"))
    place.start(wanted)
    released = await place.released()
    assert (released.exit_code, released.own_exit, released.reason) == (5, True, "rank 0 ended with exit code 5")


@pytest.fixture
def held_program(tmp_path):
    """One that somebody has a lease on (`F_SETLEASE`): the kernel lets nobody execute it before that is given back, or 45 s are
    over."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with program.open() as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield str(program)
    signal.signal(signal.SIGIO, before)


async def test_a_part_whose_start_does_not_come_to_an_end_can_be_stopped(place, held_program):
    """Neither a stop nor a request to save reached it: it held its devices for as long as its start took, for ever say."""
    for ask in (ProcessPart.stop, ProcessPart.save):
        wanted = part(spec(command=(held_program,), stop_grace_s=0.1))
        made = place.start(wanted)
        await until(lambda: place.keeper.attempts)
        ask(made)
        released = await place.released()
        assert (released.own_exit, released.category) == (False, None)
        assert "it was to stop, and its processes had not begun" in released.reason
        assert [type(s) for s in place.seen] == [Released]
        place.seen.clear()


async def test_a_start_that_does_not_come_to_an_end_is_given_up(place, held_program, monkeypatch):
    monkeypatch.setattr(processes, "START_S", 0.2)
    wanted = part(spec(command=(held_program,)))
    place.start(wanted)
    released = await place.released()
    assert (released.own_exit, released.category) == (True, Category.HARDWARE)
    assert "its processes had not begun after 0.2 s" in released.reason
    assert not place.processes(wanted)


async def test_arguments_are_never_read_by_a_shell(place):
    wanted = part(spec("x", command=("echo", "$HOME; exit 3", "`id`", "*")))
    place.start(wanted)
    assert (await place.released()).exit_code == 0
    assert place.log(wanted) == "$HOME; exit 3 `id` *\n"


async def test_killing_reports_nothing_and_leaves_nothing(place):
    wanted = part(spec(STUBBORN_DAEMON + FOREVER))
    made = place.start(wanted)
    await place.says(wanted, "up")
    assert len(place.processes(wanted)) == 2
    await until(lambda: place.seen)
    await made.kill()
    assert [type(s) for s in place.seen] == [Started]
    assert not place.processes(wanted)


async def test_a_job_that_was_forked_as_its_lease_ended_does_not_run(place):
    place.may_run = False
    wanted = part(spec(FOREVER))
    place.start(wanted)
    released = await place.released()
    assert not released.own_exit
    assert Started not in [type(s) for s in place.seen]


async def test_whom_the_keeper_kills_at_the_end_of_its_lease_has_not_ended_by_itself(place):
    """Also when a renewal comes at that moment: the agent's own deadline is a later one by then."""
    wanted = part(spec(FOREVER))
    place.start(wanted)
    await place.says(wanted, "up")
    place.keeper.until("n0", now() - 0.001)
    released = await place.released()
    assert (released.exit_code, released.own_exit, released.category) == (137, False, None)
    assert "its lease ended" in released.reason


async def test_jobs_gain_no_rights_by_the_programs_that_they_start(place):
    wanted = part(spec("print([line for line in open('/proc/self/status') if line.startswith('NoNewPrivs')])"))
    place.start(wanted)
    await place.released()
    assert place.log(wanted) == "['NoNewPrivs:\\t1\\n']\n"


@pytest.fixture
def inexact() -> Iterator[None]:
    """As `libs.service.app.run` leaves an agent."""
    set_slack(SHARED_NS)
    yield
    set_slack(EXACT_NS)


async def test_jobs_sleep_as_exactly_as_the_machine_lets_them_though_their_agent_does_not(inexact, place):
    wanted = part(spec("print(open('/proc/self/timerslack_ns').read(), end='')"))
    place.start(wanted)
    await place.released()
    assert place.log(wanted) == f"{EXACT_NS}\n"


async def test_jobs_inherit_no_descriptor_of_the_agent(place, tmp_path):
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    wanted = part(spec("import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"))
    place.start(wanted)
    await place.released()
    os.close(secret)
    assert place.log(wanted).startswith("[0, 1, 2, 3]")  # 3 is the listing itself


async def test_a_part_that_its_agent_cannot_go_on_with_is_released(place):
    """An agent of another version has noted of its job what this one does not understand. Its devices stayed held for ever."""
    wanted = part(spec(FOREVER, checkpoint=CheckpointPolicy()))
    began = place.start(wanted)
    await place.says(wanted, "up")
    await began.leave()
    adopted = ProcessPart(wanted, replace(began.launch, adopted={"seen": [None] * 3}), place.seen.append)
    place.parts.append(adopted)
    adopted.start()
    released = await place.released()
    assert not released.own_exit
    assert "agent" in released.reason
    assert not place.processes(wanted)


@pytest.mark.parametrize("number", [9, 40])
async def test_a_process_that_a_signal_ends_is_reported_with_it(place, number):
    """Real-time signals have no name of their own. Asking for one ended the agent's hearing of all its jobs."""
    wanted = part(spec(f"import os; os.kill(os.getpid(), {number})"))
    place.start(wanted)
    released = await place.released()
    assert released.exit_code == 128 + number
    assert {9: "SIGKILL", 40: "signal 40"}[number] in released.reason


PROGRESSES = """
import json, os, time
file = os.environ["BATON_PROGRESS_FILE"]
print("up", flush=True)
open(file, "w").write('{"step": 1, "st')  # half a line is no report
step = 5000
while True:
    step += 1
    with open(file + ".new", "w") as out:
        json.dump({"step": step, "steps": 10**9, "loss": 0.5}, out)
    os.rename(file + ".new", file)  # as often as it can
"""


async def test_progress_is_read_now_and_then_measured_here_and_told_once(place, monkeypatch):
    for where in ("libs.core.scheduling.progress.gauge", "services.agent.processes"):
        monkeypatch.setattr(f"{where}.SAMPLE_S", 0.05)
    place.start(part(spec(PROGRESSES)))
    await until(lambda: any(isinstance(s, ProgressSeen) for s in place.seen))
    told = [s.progress for s in place.seen if isinstance(s, ProgressSeen)]
    assert len(told) == 1
    assert (told[0].steps, told[0].loss, told[0].doubt) == (10**9, 0.5, None)
    assert told[0].step > 5000
    assert told[0].left_s > 0


@pytest.mark.parametrize(
    "write",
    [
        "open(file, 'w').write(' ' * 5000)",
        "os.mkfifo(file)",
        "os.symlink('/etc/passwd', file)",
        "os.mkdir(file)",
        "open(file, 'w').write('[' * 1000)",
        'open(file, \'w\').write(\'{"step": "x", "steps": 2}\')',
    ],
    ids=("large", "pipe", "link", "folder", "deep", "words"),
)
async def test_whatever_lies_there_instead_of_a_report_harms_nothing(place, monkeypatch, write):
    monkeypatch.setattr("libs.core.scheduling.progress.gauge.SAMPLE_S", 0.01)
    monkeypatch.setattr("services.agent.processes.SAMPLE_S", 0.01)
    place.start(part(spec(f"import os, time\nfile = os.environ['BATON_PROGRESS_FILE']\n{write}\ntime.sleep(0.3)")))
    released = await place.released()
    assert (released.exit_code, released.own_exit) == (0, True)
    assert [type(s) for s in place.seen] == [Started, Released]
