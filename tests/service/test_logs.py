"""What a process says again and again is told once a minute."""

import json
import subprocess
import sys
from textwrap import dedent
from typing import Any

import pytest

START = """
import logging, structlog
from libs.service import logs
clock = [0.0]
logs.Repeats.__init__.__defaults__ = (lambda: clock[0],)
logs.log_json("INFO", "small")
"""


def told(script: str) -> list[dict[str, Any]]:
    """The lines of a process that sets its clock."""
    done = subprocess.run([sys.executable, "-c", START + dedent(script)], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.parametrize("log", ["structlog.stdlib.get_logger", "logging.getLogger"])
def test_the_same_line_is_told_once_a_minute_with_its_number(log: str) -> None:
    found = told(
        f"""
        log = {log}("baton.test")
        for clock[0] in (0.0, 3.0, 30.0, 59.0, 60.0, 61.0, 120.0):
            log.warning("%s is away", "the broker")
        """
    )
    assert [line["event"] for line in found] == ["the broker is away"] * 3
    assert [line.get("repeated", 0) for line in found] == [0, 3, 1]
    assert {(line["service"], line["logger"], line["level"]) for line in found} == {("small", "baton.test", "warning")}


def test_whatever_is_not_the_same_is_told() -> None:
    found = told(
        """
        log, other = logging.getLogger("baton.test"), logging.getLogger("baton.other")
        for _ in range(2):
            log.warning("node %s is away", "n1")
            log.warning("node %s is away", "n2")
            log.info("node %s is away", "n1")
            other.warning("node %s is away", "n1")
            for fault in (ValueError("one"), ValueError("two"), TypeError("one")):
                try:
                    raise fault
                except Exception:
                    log.exception("it failed")
        """
    )
    assert len(found) == 7


def test_what_is_remembered_is_bounded() -> None:
    found = told(
        """
        log = logging.getLogger("baton.test")
        for n in range(1000):
            log.warning("line %d", n)
        log.warning("line %d", 0)
        log.warning("line %d", 999)
        """
    )
    assert len(found) == 1001
