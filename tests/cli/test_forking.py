"""What is imported before anything is asked for: of all services, in one order, in a fork of the command that starts them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from libs.cli import forking
from libs.cli.launch_options import SERVICES
from libs.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]

TAKES = """
import os
from libs.cli import forking

forking.early()
other = forking._early
assert forking.take(["json"]) is None, "it prepares something else"
assert other.process.returncode is not None, "so it has ended"
forking.early()
taken = forking.take(forking.shared(forking.ALL))
assert taken.process.poll() is None
assert forking.take(taken.what) is None, "it has one owner"
taken.end()
try:
    os.kill(taken.process.pid, 0)
except ProcessLookupError:
    print("ended")
"""

SPLITS = """
import asyncio, logging, os, sys
from pathlib import Path
from libs.embedded.forkserver import ForkServer, Spawned

async def run(spawned, folder):
    server, codes = ForkServer(spawned), []
    for name in ("exits", "raises", "ends"):
        with open(folder / f"{name}.log", "wb", 0) as log:
            forked = await server.fork(name, {**os.environ, "NAME": name}, None, log)
            codes.append(await forked.wait())
    await server.stop()
    print(codes, spawned.process.returncode, "OPENBLAS_NUM_THREADS" in os.environ)

logging.getLogger("baton").setLevel(logging.CRITICAL)
folder = Path(sys.argv[1])
sys.path.insert(0, sys.argv[1])
try:
    spawned = Spawned.split(["colorsys"], dict(os.environ))
    asyncio.run(run(spawned, folder))
except Exception:
    print("seen by the command")
"""


def _python(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def test_every_service_is_prepared_and_the_order_is_not_the_callers() -> None:
    assert set(forking.ALL) == {*SERVICES, "agent"}
    assert forking.shared(("placement", "vault")) == forking.shared(("vault", "placement"))
    assert forking.shared(()) == []


def test_what_was_split_off_is_for_whoever_needs_just_that() -> None:
    assert _python(TAKES) == "ended\n"


@pytest.mark.parametrize("command", [name for name, entry in COMMANDS.items() if entry.serves])
def test_a_command_that_starts_services_can_be_split_once_it_has_imported_what_it_needs(command: str) -> None:
    """Seen: one module more that `baton up` imports needed numpy, whose library had a thread for each core. The fork server
    was started by itself then, and `baton up` took 30 MiB more."""
    script = (
        f"import os; from libs.cli import forking, main; main.load('{COMMANDS[command].module}', serves=True)\n"
        "forking.early(); print(forking._early is not None, 'OPENBLAS_NUM_THREADS' in os.environ)"
    )
    assert _python(script) == "True False\n"


def test_what_a_split_off_process_forks_is_as_one_that_was_started_by_itself(tmp_path: Path) -> None:
    says = (
        "import logging, os, sys\nlogging.getLogger('baton.x').warning('%s', sorted({'colorsys'} & set(sys.modules)))\n"
    )
    (tmp_path / "exits.py").write_text(says + "sys.exit(3)\n")
    (tmp_path / "raises.py").write_text(says + "raise ValueError(os.environ['NAME'])\n")
    (tmp_path / "ends.py").write_text(says + "print(os.environ['NAME'])\n")
    ended = [
        f"[3, 1, 0] {code} False\n" for code in (-9, 0)
    ]  # it is killed, or has seen before that nobody has it any more
    assert _python(SPLITS, str(tmp_path)) in ended, "no other way out leads through the command's own code"
    assert (tmp_path / "exits.log").read_text() == "['colorsys']\n"
    raised = (tmp_path / "raises.log").read_text()
    assert "Traceback" in raised
    assert raised.endswith("ValueError: raises\n")
    assert (tmp_path / "ends.log").read_text() == "['colorsys']\nends\n"
