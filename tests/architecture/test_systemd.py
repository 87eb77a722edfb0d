"""deploy/systemd: the units start what there is, with settings that there are, and keep the rights that they promise."""

import importlib.util
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from libs.bus.creds import LOGS_CREDS
from libs.bus.wire import CA_FILE
from libs.cli.main import load
from libs.service.settings import ServiceSettings
from libs.walls.roles import SERVICES

FOLDER = Path(__file__).parents[2] / "deploy/systemd"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
BY_HAND = {"BATON_POOLS"}
"""Of `baton provision`."""
NEWER = re.compile(r"Unknown key.* 'Restart(Steps|MaxDelaySec)'")
"""Of systemd 254: an older one says so, and goes on."""


def read(unit: str) -> dict[str, list[str]]:
    """Each setting with its values, in order."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / unit).read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def variables() -> set[str]:
    """Of all services' settings."""
    found: set[str] = set()
    for service in (*SERVICES, "agent"):
        module = import_module(f"services.{service}.settings")
        kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, ServiceSettings)]
        found |= {name for kind in kinds for name in _of(kind)}
    return found


def _of(kind: type[ServiceSettings]) -> set[str]:
    prefix = kind.model_config["env_prefix"]
    found: set[str] = set()
    for name, field in kind.model_fields.items():
        alias: Any = field.validation_alias
        found |= set(getattr(alias, "choices", [alias])) if alias is not None else {f"{prefix}{name}".upper()}
    return found


def test_the_target_starts_every_service_and_no_other() -> None:
    wanted = " ".join(read("baton.target")["Wants"]).split()
    assert sorted(wanted) == sorted(["baton-provision.service", *(f"baton@{service}.service" for service in SERVICES)])


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_starts_what_there_is(unit: str) -> None:
    (line,) = read(unit)["ExecStart"]
    program, *arguments = shlex.split(line)
    if program.endswith("/python"):
        for service in SERVICES if "%i" in line else ("",):
            assert importlib.util.find_spec(arguments[1].replace("%i", service) + ".__main__"), arguments
        return
    assert program.endswith("/baton")
    command = load(arguments.pop(0))
    while getattr(command, "commands", None):
        command = command.commands[arguments.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in arguments if word.startswith("-")} <= options


@pytest.mark.parametrize("name", [*UNITS, *sorted(path.name for path in FOLDER.glob("*.env"))])
def test_every_variable_is_a_setting(name: str) -> None:
    named = set(re.findall(r"\bBATON_[A-Z_]+(?==)", (FOLDER / name).read_text()))
    assert named <= variables() | BY_HAND
    assert named or name == "baton-team-serve.service"


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_keeps_its_rights_to_itself_and_comes_back(unit: str) -> None:
    said = {name: values[-1] for name, values in read(unit).items()}
    assert (said["NoNewPrivileges"], said["Restart"]) == ("yes", "on-failure")
    assert said["ProtectSystem"] in ("strict", "full")
    assert int(said["LimitNOFILE"]) >= 65_536
    assert {"RestartSec", "RestartMaxDelaySec", "StartLimitIntervalSec"} <= said.keys()
    if unit == "baton-agent.service":
        assert (said["Delegate"], said["KillMode"]) == ("yes", "process")
    else:
        rights = "CAP_NET_ADMIN" if unit == "baton-team-serve.service" else ""
        assert (said["ProtectSystem"], said["CapabilityBoundingSet"]) == ("strict", rights)
    if unit != "baton-team-serve.service":  # which is given the keys themselves
        assert "StateDirectory" in said
        given = {value.partition(":")[0] for value in read(unit)["LoadCredential"]}
        assert given == {"nats.creds", CA_FILE} | ({LOGS_CREDS} if "agent" in unit else set())
        assert "BATON_NATS_CREDS=%d/nats.creds" in read(unit)["Environment"]


def test_systemd_understands_them(tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("there is no systemd-analyze here")
    for path in FOLDER.glob("*.*"):
        (tmp_path / path.name).write_text(re.sub(r"/opt/baton/bin/\w+", "/bin/true", path.read_text()))
    names = [name.replace("@", "@placement") for name in UNITS]
    verified = subprocess.run(
        [analyze, "verify", "--man=no", *names, "baton.target"],
        cwd=tmp_path, env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    said = [line for line in verified.stderr.splitlines() if str(tmp_path) in line and not NEWER.search(line)]
    assert (verified.returncode, said) == (0, [])
