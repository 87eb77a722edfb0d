"""The short forms that people type."""

from typing import Any

import pytest

from libs.cli.grammar import (
    Gpus,
    parse_duration,
    parse_gpus,
    parse_limit,
    parse_memory,
    parse_pairs,
    parse_role,
    parse_share,
    parse_topology,
    parse_torus,
)
from schemas.resources import Role


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("4", Gpus(4)),
        ("H100:4", Gpus(4, ("H100",))),
        ("h100:4", Gpus(4, ("H100",))),
        ("gpu:4", Gpus(4)),
        ("gpu:h100:4", Gpus(4, ("H100",))),
        ("GPU:H100:4", Gpus(4, ("H100",))),
        ("H100:2@40GiB", Gpus(2, ("H100",), 40 * 1024)),
        ("8@16GiB", Gpus(8, (), 16 * 1024)),
        ("tpu-v5e:4", Gpus(4, ("v5e",))),
        ("v5p:8960", Gpus(8960, ("v5p",))),
        ("TPU-v5e:4", Gpus(4, ("TPU-v5e",))),
        ("CPU:1", Gpus(1, ("CPU",))),
    ],
)
def test_device_requests(text: str, gpus: Gpus) -> None:
    assert parse_gpus(text) == gpus


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("H100=8", ("H100", "8")),
        ("h100=8", ("H100", "8")),
        ("H100:8", ("H100", "8")),
        ("h100:2.5", ("H100", "2.5")),
        ("h100:1g.10gb=7", ("H100:1g.10gb", "7")),
        ("H100:1g.10gb:7", ("H100:1g.10gb", "7")),
        ("tpu-v5e=4", ("v5e", "4")),
        ("cpu:2", ("CPU", "2")),
        ("ourchip=2", ("ourchip", "2")),
        ("H100=many", ("H100", "many")),
    ],
)
def test_limits(text: str, limit: tuple[str, str]) -> None:
    """Seen: h100=8 was refused where `--gpus h100:8` is taken."""
    assert parse_limit(text) == limit


@pytest.mark.parametrize("text", ["H100", "=8", "H100=", "H100:1g.10gb", ""])
def test_what_is_no_limit_is_told_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"write TYPE=N, e\.g\. H100=8 or H100:1g\.10gb=7"):
        parse_limit(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("H100", "H100:1"),
        ("4:H100", "H100:4"),
        ("8xA100", "A100:8"),
        ("A100x8", "A100:8"),
        ("H100=2", "H100:2"),
        ("0.5", "--share 0.5"),
        ("None", "'None' is not a device request: write [type:]count[@memory], e.g. H100:1"),
        ("4:true", "e.g. H100:1"),
        ("", "H100:4"),
        ("H100:", "H100:4"),
        ("H100:0", "1 to 9216"),
        ("9217", "1 to 9216"),
        ("-1", "not a device request"),
        ("H100:4@", "not a device request"),
        ("H100:4@40", "not a device request"),
        ("H100:4; rm -rf /", "not a device request"),
        ("9" * 400, "not a device request"),
    ],
)
def test_wrong_device_requests_say_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ValueError) as e:
        parse_gpus(text)
    assert says in str(e.value)
    assert len(str(e.value)) < 200


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("40GiB", 40_960),
        ("40gib", 40_960),
        ("1.5GiB", 1536),
        ("1024MiB", 1024),
        ("80GB", 76_294),
        ("1T", 953_675),
        ("1KiB", 1),
    ],
)
def test_memory_is_rounded_up_to_mib(text: str, mib: int) -> None:
    assert parse_memory(text) == mib


@pytest.mark.parametrize("text", ["40", "", "GiB", "-1GiB", "1e3GiB", "40 PiB", "nan GiB"])
def test_memory_needs_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(ValueError, match="40GiB"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d12h", 129_600), ("1h30m", 5400), ("0.5s", 0.5), ("02:30:00", 9000),
     ("02:30", 9000), ("1-12:00:00", 129_600)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "h", "1w", "-1h", "30m2h", "1:2:3:4", "two hours"])
def test_wrong_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_topology() -> None:
    assert parse_topology("node:required") == {"level": "node", "policy": "required"}
    assert parse_topology("nvlink:required") == {"level": "nvlink", "policy": "required"}
    assert parse_topology("leaf:preferred:10m") == {"level": "leaf", "policy": "preferred", "widen_after_s": 600}
    assert parse_topology("LEAF") == {"level": "leaf", "policy": "preferred"}
    for wrong in ("rack:required", "node:must", ":required", ""):
        with pytest.raises(ValueError, match="levels: nvlink, node"):
            parse_topology(wrong)


@pytest.mark.parametrize(("text", "milli"), [("0.5", 500), ("50%", 500), ("1", 1000), ("0.0001", 1)])
def test_shares(text: str, milli: int) -> None:
    assert parse_share(text) == milli


@pytest.mark.parametrize("text", ["0", "2", "-0.5", "half", "nan", "inf", ""])
def test_wrong_shares(text: str) -> None:
    with pytest.raises(ValueError, match="share of a device"):
        parse_share(text)


def test_environment() -> None:
    assert parse_pairs(["A=1", "B=x=y", "C=", "A=2"]) == {"A": "2", "B": "x=y", "C": ""}
    for wrong in ("A", "=1", ""):
        with pytest.raises(ValueError, match="NAME=VALUE"):
            parse_pairs([wrong])


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("trainer=8x4", {"name": "trainer", "count": 8, "devices": 4}),
        ("judge=l40s:2", {"name": "judge", "count": 2, "devices": 1, "types": ["L40S"]}),
        ("ps=2@24GiB,cpus=4,host-memory=64GiB",
         {"name": "ps", "count": 2, "devices": 1, "memory_mib": 24 * 1024, "cpu_milli": 4000,
          "host_memory_mib": 64 * 1024}),
        ("stage=8x8,min=4,topology=nvlink:required,types=H100+h200",
         {"name": "stage", "count": 8, "devices": 8, "min_count": 4, "types": ["H100", "H200"],
          "topology": {"level": "nvlink", "policy": "required"}}),
    ],
)  # fmt: skip
def test_roles(text: str, role: dict[str, Any]) -> None:
    assert parse_role(text) == role
    Role.model_validate(role)


@pytest.mark.parametrize(
    ("text", "says"),
    [("trainer", "trainer=H100:8x4"), ("=8x4", "is not a role"), ("a=8x", "is not a role"), ("a=8x4,mem=1GiB", "min=..."),
     ("a=8x4,topology=rack", "is not a topology"), ("a=2,cpus=many", "number of processors")],
)  # fmt: skip
def test_wrong_roles_say_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ValueError) as e:
        parse_role(text)
    assert says in str(e.value)


def test_boxes_of_chips() -> None:
    assert parse_torus("4x4x2") == {"torus": [4, 4, 2]}
    assert parse_torus("v5e:4x8") == {"torus": [4, 8], "types": ["v5e"]}
    for wrong in ("16", "4x4x4x4", "4xx4", "v5p:"):
        with pytest.raises(ValueError, match="box of chips"):
            parse_torus(wrong)
