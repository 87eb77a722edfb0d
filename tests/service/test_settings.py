"""Settings come from the environment by their documented names, and from nothing else."""

import pytest
from pydantic_settings import SettingsConfigDict

from libs.service.settings import ServiceSettings


class Mine(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="BATON_MINE_")

    lease_s: float = 10.0


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NATS_URL", "POOL", "HTTP_PORT", "LOG_LEVEL", "STATE_DIR", "MINE_LEASE_S"):
        monkeypatch.delenv(f"BATON_{name}", raising=False)


def test_shared_and_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_NATS_URL", "nats://elsewhere:1")
    monkeypatch.setenv("BATON_POOL", "east")
    monkeypatch.setenv("BATON_MINE_LEASE_S", "3")
    mine = Mine()
    assert (mine.nats_url, mine.pool, mine.lease_s) == ("nats://elsewhere:1", "east", 3.0)


def test_names_of_other_programs_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POOL", "NATS_URL", "LOG_LEVEL", "LEASE_S"):
        monkeypatch.setenv(name, "not ours")
    assert Mine() == Mine(pool="main", lease_s=10.0)


def test_an_empty_variable_is_an_absent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_STATE_DIR", "")
    monkeypatch.setenv("BATON_HTTP_PORT", "")
    assert (Mine().state_dir, Mine().http_port) == (None, 0)
