"""What is imported before anything is asked for: of all services, in one order."""

import os
from collections.abc import Iterator

import pytest

from libs.cli import forking
from libs.cli.launch_options import SERVICES


@pytest.fixture
def early() -> Iterator[None]:
    forking.early()
    yield
    forking.take([])


def test_every_service_is_prepared_and_the_order_is_not_the_callers() -> None:
    assert set(forking.ALL) == {*SERVICES, "agent"}
    assert forking.shared(("placement", "vault")) == forking.shared(("vault", "placement"))
    assert forking.shared(()) == []


@pytest.mark.usefixtures("early")
def test_what_was_started_early_is_for_whoever_needs_just_that() -> None:
    taken = forking.take(forking.shared((*SERVICES, "agent")))
    assert taken is not None
    assert taken.process.poll() is None
    assert forking.take(forking.shared((*SERVICES, "agent"))) is None, "it has one owner"
    taken.end()


@pytest.mark.usefixtures("early")
def test_one_that_prepares_something_else_ends() -> None:
    spawned = forking._early
    assert spawned is not None
    assert forking.take(forking.shared(("vault",))) is None
    assert spawned.process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(spawned.process.pid, 0)
