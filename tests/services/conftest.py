"""Services in this process, against a real nats-server and a real Valkey."""

import pytest

from libs.bus.connect import BusConnection
from tests.services.pool import Pool


@pytest.fixture
def world(nats: BusConnection, pool: str) -> Pool:
    return Pool(nats, pool)
