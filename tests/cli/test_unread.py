"""`baton ... | head`: who reads the output may go at any time, and a command ends as other tools do: quietly, with 141."""

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.bus.creds import Address
from libs.cli.exits import Exit
from libs.cli.main import COMMANDS, load, main
from libs.client import Baton
from schemas.jobs import JobSpec
from tests.client.fakes import Fakes

ROOT = Path(__file__).parents[2]


def every(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    for name, one in getattr(command, "commands", {}).items():
        yield from every(one, (*path, name))


@contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody reads stdout meanwhile."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        yield
        monkeypatch.undo()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in every(load(COMMANDS[name].module), (name,)):
        with unread(monkeypatch):
            monkeypatch.setattr(sys, "argv", ["baton", *path, "--help"])
            with pytest.raises(SystemExit) as end:
                main()
        assert (path, end.value.code, capsys.readouterr().err) == (path, Exit.NOT_READ, "")


@pytest.mark.parametrize(
    "arguments",
    [["get", "jobs"], ["get", "jobs", "-o", "json"], ["watch"], ["submit", "--gpus", "1", "--", "x"]],
    ids=" ".join,
)
async def test_what_a_command_says(
    arguments: list[str], blue: Baton, urls: dict[str, Address], fakes: Fakes, key: str
) -> None:
    await blue.submit(JobSpec(command=("x",)), key)
    reader, writer = os.pipe()
    os.close(reader)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "libs.cli", *arguments, cwd=ROOT, env={**os.environ, **urls["blue"].environ()},
        stdout=writer, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(writer)
    while arguments == ["watch"] and process.returncode is None:  # it says nothing until something happens
        await blue.submit(JobSpec(command=("x",)), secrets.token_hex())
        await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=0.2)
    _, err = await process.communicate()
    assert (process.returncode, err.decode()) == (Exit.NOT_READ, "")
