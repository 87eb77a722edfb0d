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
FOUND = re.findall(r"```(nft|sh)\n(.*?)```", PAGE.read_text(), re.DOTALL)
RECIPES = [(kind, text) for kind, text in FOUND if "4222" in text]
PLACES = [text for _, text in FOUND if "ct count" in text]
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


TRACKED = """
import os, socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["nft", "-f", "-"], input=sys.stdin.read(), text=True, check=True)
def places_after(uid, address, count):
    if os.fork() == 0:
        os.setuid(uid)
        with socket.socket(type=socket.SOCK_DGRAM) as one:
            for port in range(1, count + 1):
                try:
                    one.sendto(b"", (address, port))
                except OSError:
                    pass
        os._exit(0)
    os.wait()
    with open("/proc/sys/net/netfilter/nf_conntrack_count") as file:
        return int(file.read())
red, blue = map(int, sys.argv[1:])
print([places_after(red, "127.0.0.2", 20_000), places_after(blue, "127.0.0.3", 500), places_after(0, "127.0.0.4", 500)])
"""


def test_the_page_has_recipes_for_the_users_that_teams_have() -> None:
    assert [kind for kind, _ in RECIPES] == ["nft", "nft", "sh"]
    assert len(PLACES) == 1
    assert all(f"{FIRST_TEAM_UID}-{LAST_TEAM_UID}" in text for text in (*(text for _, text in RECIPES), *PLACES))


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft")
def test_one_team_has_so_many_places_for_tracked_connections_and_leaves_the_others() -> None:
    command = ["unshare", "--net", sys.executable, "-c", TRACKED, str(team_uid("red")), str(team_uid("blue"))]
    said = subprocess.run(command, input=PLACES[0], capture_output=True, text=True, timeout=60, check=True)
    red, blue, root = json.loads(said.stdout)
    assert 16_000 < red <= 16_400
    assert blue - red == 500
    assert root - blue == 500


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
