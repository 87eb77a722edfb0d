"""The recipes of docs/jobs-walls.md that keep jobs from the broker's port, as they stand there, in a network of their own."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.ids import FIRST_TEAM_UID, TEAM_UIDS, team_uid

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network and rules for it"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2"),
]
LAST_TEAM_UID = FIRST_TEAM_UID + TEAM_UIDS - 1
PAGE = Path(__file__).parents[2] / "docs/jobs-walls.md"
RECIPES = re.findall(r"```(nft|sh)\n(.*?)```", PAGE.read_text(), re.DOTALL)
RUN = {"nft": ["nft", "-f", "-"], "sh": ["sh", "-e"]}

TRIES = """
import os, socket, subprocess, sys
wanted, program = int(sys.argv[1]), sys.argv[2:]
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
broker, other = (socket.create_server(("127.0.0.1", port), backlog=4000) for port in (4222, 4223))
def got(uid, port):
    reading, writing = os.pipe()
    if os.fork() == 0:
        held = []
        os.setuid(uid)
        while len(held) < wanted:
            held.append(socket.socket())
            held[-1].settimeout(10)
            try:
                held[-1].connect(("127.0.0.1", port))
            except OSError:
                held.pop()
                break
        os.write(writing, b"%d" % len(held))
        os._exit(0)
    os.wait()
    return int(os.read(reading, 8))
teams = sys.stdin.readline().split()
said = sys.stdin.read()
print([got(int(uid), 4222) for uid in teams])
subprocess.run(program, input=said, text=True, check=True)
print([got(int(uid), 4222) for uid in teams])
print([got(0, 4222), got(1000, 4222), got(int(teams[0]), 4223)])
"""


def test_the_page_has_recipes_for_the_users_that_teams_have() -> None:
    assert [kind for kind, _ in RECIPES] == ["nft", "nft", "sh"]
    assert all(f"{FIRST_TEAM_UID}-{LAST_TEAM_UID}" in text for _, text in RECIPES)


@pytest.mark.parametrize(("kind", "text"), RECIPES)
def test_a_recipe_keeps_jobs_from_the_brokers_port_and_nobody_else(kind: str, text: str) -> None:
    if shutil.which(RUN[kind][0]) is None:
        pytest.skip(f"needs {RUN[kind][0]}")
    wanted, uids = 400, f"{team_uid('red')} {FIRST_TEAM_UID} {LAST_TEAM_UID}\n"
    command = ["unshare", "--net", sys.executable, "-c", TRIES, str(wanted), *RUN[kind]]
    said = subprocess.run(command, input=uids + text, capture_output=True, text=True, timeout=60, check=True)
    before, teams, others = map(json.loads, said.stdout.splitlines())
    assert (before, others) == ([wanted] * 3, [wanted] * 3)
    assert all(64 <= count < wanted if "burst 64" in text else count == 0 for count in teams), teams
