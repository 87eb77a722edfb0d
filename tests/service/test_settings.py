"""Settings come from the environment by their documented names, and from nothing else."""

from pathlib import Path

import pytest
from pydantic_settings import SettingsConfigDict

from libs.service.settings import SHIPPED, ServiceSettings
from libs.service.starting import read_settings
from services.admission.settings import AdmissionSettings
from services.placement.settings import PlacementSettings
from services.queries.settings import QueriesSettings
from services.quota_billing.settings import QuotaBillingSettings


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


def test_one_variable_names_a_file_for_every_service_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRICES", "CLASSES", "TEAMS", "THROUGHPUTS"):
        monkeypatch.setenv(f"BATON_{name}_FILE", str(SHIPPED / f"{name.lower()}.yaml"))
    admission, billing = AdmissionSettings(), QuotaBillingSettings()
    assert {one.prices for one in (billing, PlacementSettings(), QueriesSettings())} == {SHIPPED / "prices.yaml"}
    assert {one.classes for one in (admission, PlacementSettings(), QueriesSettings())} == {SHIPPED / "classes.yaml"}
    assert admission.teams == billing.teams == SHIPPED / "teams.yaml"


def test_a_files_variable_of_earlier_releases_is_read_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_QUOTA_BILLING_PRICES", "ours.yaml")
    monkeypatch.setenv("BATON_ADMISSION_CLASSES", str(SHIPPED / "classes.yaml"))
    assert (QuotaBillingSettings().prices, AdmissionSettings().classes) == (Path("ours.yaml"), SHIPPED / "classes.yaml")
    monkeypatch.setenv("BATON_PRICES_FILE", "theirs.yaml")
    assert QuotaBillingSettings().prices == Path("theirs.yaml")


def test_a_wrong_file_is_told_by_the_variable_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_TEAMS_FILE", "none.yaml")
    with pytest.raises(
        ValueError, match=r"BATON_TEAMS_FILE: none\.yaml cannot be read .*name another with BATON_TEAMS_FILE"
    ):
        read_settings(AdmissionSettings)
