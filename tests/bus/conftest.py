"""Shared by the tests of libs.bus: a server that a test may kill."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.embedded.servers import NATS
from tests.kit.background import ServerInBackground


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerInBackground]:
    """A NATS server for one test, which may kill it."""
    with ServerInBackground(NATS, tmp_path / "own", sync_always=True) as server:
        yield server
