"""The price book and the teams' file: what is shipped works, what is wrong is said with place and fix."""

from pathlib import Path

import pytest

from libs.core.accelerators.catalog import catalog, models
from libs.core.accelerators.mig_boards import GEOMETRIES
from libs.core.admission.intake import EVERYBODY, SHIPPED, Intake, IntakeLimits
from libs.core.admission.traffic import EVERYBODYS, TrafficLimits
from libs.core.state.limits import Limits
from libs.service.files import read, read_prices
from libs.service.teams_file import load_intake, load_traffic
from schemas.billing import PriceBook
from services.admission.settings import AdmissionSettings
from services.quota_billing.files import BadFile, load_quotas, quota_changes
from services.quota_billing.settings import QuotaBillingSettings

ROOT = Path(__file__).parents[2]

SETTINGS = QuotaBillingSettings()


def test_the_shipped_price_book_prices_every_model_of_the_catalogue() -> None:
    prices = read_prices(SETTINGS.prices)
    assert not [model for model in sorted(models()) if not prices.of(model, "experiment")]
    assert "CPU" in models()
    assert prices.of("whatever comes next year", "experiment") is None


def test_the_shipped_price_book_prices_every_mig_profile_at_about_its_share() -> None:
    prices = read_prices(SETTINGS.prices)
    for accelerator in catalog().values():
        geometry = GEOMETRIES.get(accelerator.mig)
        whole = prices.of(accelerator.model)
        for profile in geometry.profiles if geometry else ():
            price = prices.of(f"{accelerator.model}:{profile.name}")
            assert price is not None, f"{accelerator.model}:{profile.name}"
            assert whole is not None
            share = whole * profile.compute_slices / geometry.compute
            assert share - 5_000 <= price <= 1.15 * share + 5_000


def test_the_shipped_price_book_names_nothing_that_does_not_exist() -> None:
    book = read(SETTINGS.prices, PriceBook, "")
    assert {price.model.partition(":")[0] for price in book.prices} == models()


def test_the_shipped_teams_file_can_be_read() -> None:
    assert load_quotas(SETTINGS.teams)


def test_a_model_may_be_spelt_as_drivers_and_shops_do(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(
        "currency: USD\nprices:\n"
        "  - {model: TPU-v5e, micros_per_device_hour: 7}\n  - {model: 'h100:1g.10gb', micros_per_device_hour: 3}\n"
    )
    prices = read_prices(path)
    assert [prices.of(name) for name in ("v5e", "TPU v5e", "H100:1g.10gb", "H100", "v5p")] == [7, 7, 3, None, None]


def test_a_book_may_list_more_than_a_strangers_file_may(tmp_path: Path) -> None:
    rows = "".join(f"- {{model: M{n}, micros_per_device_hour: {n}}}\n" for n in range(6000))
    book = tmp_path / "prices.yaml"
    book.write_text(f"currency: USD\nprices:\n{rows}")
    assert len(read(book, PriceBook, "").prices) == 6000


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            "currency: USD\nprices: [{model: v5e, micros_per_device_hour: 1}, {model: TPU-v5e, micros_per_device_hour: 2}]",
            "'TPU-v5e' is another name of 'v5e'",
        ),
        ("currency: USD\nprices: [{model: '*', micros_per_device_hour: 1}]", r"prices\.0\.model"),
        ("currency: dollars\nprices: [{model: H100, micros_per_device_hour: 1}]", "currency"),
        ("currency: USD\nprices: [{model: H100, price: 1}]", r"prices\.0\.micros_per_device_hour.*prices\.0\.price"),
        ("currency: USD\nprices: [{model: H100, micros_per_device_hour: -1}]", "-1: too small: use at least 0"),
        ("currency: [", "not YAML"),
        (
            "currency: USD\nprices:\n- {model: H100, micros_per_device_hour: 1_0}",
            r"line 3: prices\.0\.micros_per_device_hour: '1_0' is not a number.*write it in decimal",
        ),
    ],
)
def test_a_bad_price_book_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(content)
    with pytest.raises(BadFile, match=problem) as refused:
        read_prices(path)
    assert str(path) in str(refused.value)


def test_a_list_whose_items_are_wrong_is_not_said_to_be_too_short(tmp_path: Path) -> None:
    """Seen: "prices: [...]: too few", of a list with one price that lacked a field."""
    path = tmp_path / "prices.yaml"
    path.write_text("currency: USD\nprices: [{model: H100}]\n")
    with pytest.raises(BadFile) as refused:
        read_prices(path)
    assert str(refused.value) == f"{path}: prices.0.micros_per_device_hour: the field is missing: add it"
    path.write_text("currency: USD\nprices: []\n")
    with pytest.raises(BadFile, match=r"prices: .*too few: write at least 1"):
        read_prices(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"none\.yaml cannot be read"):
        read_prices(tmp_path / "none.yaml")


def test_quotas_are_devices_in_thousandths(tmp_path: Path) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text("teams:\n  a: {devices: 8}\n  b: {devices: 0.125}\n  c: {devices: null}\n")
    assert load_quotas(path) == {"a": Limits(8000), "b": Limits(125), "c": None}


def test_quotas_may_be_told_by_type_and_mig_profile_besides(tmp_path: Path) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text(
        "teams:\n  a: {devices: 16, types: {H100: 8, 'H100:1g.10gb': 7, CPU: 0.5}}\n  b: {devices: null, types: {A100: 0}}\n"
    )
    assert load_quotas(path) == {
        "a": Limits(16_000, (("CPU", 500), ("H100", 8000), ("H100:1g.10gb", 7000))),
        "b": Limits(None, (("A100", 0),)),
    }


@pytest.mark.parametrize(
    ("types", "says"),
    [
        ("{H10O: 8}", r"teams\.a\.types: .*H10O: no such device type: did you mean H100\?"),
        ("{'H100:1g.10g': 7}", r"H100:1g\.10g: no such MIG profile: did you mean 1g\.10gb\?"),
        ("{'V100:1g.10gb': 7}", r"V100 has none: leave the profile out"),
        ("{H100: -1}", r"teams\.a\.types\.H100"),
        ("{'*': 4}", r"teams\.a\.types\.\*"),
    ],
    ids=["type", "profile", "no MIG", "negative", "total"],
)
def test_an_impossible_limit_by_type_is_refused(tmp_path: Path, types: str, says: str) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text(f"teams:\n  a: {{devices: 8, types: {types}}}\n")
    with pytest.raises(BadFile, match=says):
        load_quotas(path)


@pytest.mark.parametrize("devices", ["0.0001", "-1", "many"])
def test_an_impossible_quota_is_refused(tmp_path: Path, devices: str) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text(f"teams:\n  a: {{devices: {devices}}}\n")
    with pytest.raises(BadFile, match=r"teams\.a\.devices"):
        load_quotas(path)


def test_only_what_is_new_or_changed_in_the_file_is_told() -> None:
    by_type = Limits(3000, (("H100", 1000),))
    file = {
        "new": Limits(1000), "same": Limits(2000), "changed": Limits(3000), "typed": by_type, "lifted": None,
        "known": Limits(4000), "unlimited": None,
    }  # fmt: skip
    applied = {"same": Limits(2000), "changed": Limits(1), "typed": Limits(3000), "lifted": Limits(5)}
    ledger = applied | {"same": Limits(9), "known": Limits(4000)}  # an operator set "same" to 9 in the meantime
    told = {"new": Limits(1000), "changed": Limits(3000), "typed": by_type, "lifted": None}
    assert quota_changes(file, applied, ledger) == told
    assert quota_changes(file, file, {}) == {}


def test_the_shipped_file_bounds_what_a_team_asks_for_that_nobody_has_named() -> None:
    limits = Intake(load_intake(ROOT / "deploy/teams.yaml"))
    taken = 0
    while limits.submit("stranger", 256 * 1024, 0, 0) is None:
        taken += 1
        assert taken < 1_000
    assert limits.submit("another", 1024, 10**6, 0) is not None, "and its open jobs"


def test_without_a_file_or_a_word_in_it_teams_have_the_limits_that_are_shipped(tmp_path: Path) -> None:
    """A stranger's first day: `baton up` without `--quotas` had none."""
    path = tmp_path / "teams.yaml"
    assert AdmissionSettings(teams=None).intake_limits() == {EVERYBODY: SHIPPED}
    assert load_intake(ROOT / "deploy/teams.yaml")[EVERYBODY] == SHIPPED
    assert all(getattr(SHIPPED, name) is not None for name in IntakeLimits.model_fields), "none is left open"
    path.write_text("teams: {}\n")
    assert load_intake(path) == {EVERYBODY: SHIPPED}
    path.write_text("intake: {}\nteams: {}\n")
    assert load_intake(path) == {}
    assert (
        "100,000 open jobs, of 256 MiB, of 1,000 different shapes in a pool, 1,000 submits a second (100,000 at once)"
        in SHIPPED.text()
    )
    assert IntakeLimits().text() == "no limit"


def test_what_a_team_may_ask_for_stands_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text("teams:\n  a: {devices: 1, intake: {open_jobs: 5, submits_per_s: 0.5}}\n  b: {devices: null}\n")
    mine = SHIPPED.but(IntakeLimits(open_jobs=5, submits_per_s=0.5))
    assert load_intake(path) == {EVERYBODY: SHIPPED, "a": mine, "b": SHIPPED}
    assert set(load_quotas(path)) == {"a", "b"}
    everybody = "intake: {open_jobs: 9, bytes_per_s: 1000}\nteams:\n  a: {devices: 1, intake: {open_jobs: null}}\n"
    path.write_text(everybody)
    all_may = IntakeLimits(open_jobs=9, bytes_per_s=1000)
    assert load_intake(path) == {EVERYBODY: all_may, "a": IntakeLimits(open_jobs=None, bytes_per_s=1000)}
    path.write_text("teams:\n  a: {devices: 1, intake: {open_jobs: 0}}\n")
    with pytest.raises(ValueError, match=r"teams.a.intake.open_jobs: 0: .*too small: use at least 1"):
        AdmissionSettings(teams=path)
    path.write_text("teams:\n  a: {devices: 1, intake: {queue: 5}}\n")
    with pytest.raises(BadFile, match=r"teams.a.intake.queue: 5: unknown field: remove it"):
        load_intake(path)


def test_what_may_pass_is_what_is_shipped_but_for_what_the_file_says(tmp_path: Path) -> None:
    assert load_traffic(None) == {EVERYBODY: EVERYBODYS}
    assert load_traffic(ROOT / "deploy/teams.yaml")[EVERYBODY] == EVERYBODYS
    path = tmp_path / "teams.yaml"
    path.write_text(
        "traffic: {said_per_s: 7}\nteams:\n  a: {devices: 1, traffic: {heard_per_s: null}}\n  b: {devices: 1}\n"
    )
    all_may = TrafficLimits(said_per_s=7)
    assert load_traffic(path) == {EVERYBODY: all_may, "a": TrafficLimits(said_per_s=7, heard_per_s=None), "b": all_may}
    path.write_text("traffic: {said: 7}\nteams: {}\n")
    with pytest.raises(BadFile, match=r"traffic.said: 7: unknown field: remove it"):
        load_traffic(path)
