"""How large a share of the processors an attempt has."""

import pytest

from schemas.jobs import JobSpec
from schemas.resources import Resources
from services.agent.limits import cpu_weight_of
from tests.agent.build import part, rank


@pytest.mark.parametrize(
    ("cpu_milli", "devices", "milli", "weight"),
    [
        (0, 1, 1000, 100),
        (0, 8, 1000, 800),
        (0, 1, 250, 25),  # of a device that is shared
        (12_000, 1, 1000, 1200),
        (12_000, 4, 1000, 4800),
        (100, 2, 1000, 200),  # less than its devices
        (2_000, 1, 250, 200),
        (64_000, 8, 1000, 10_000),
        (0, 1, 1, 1),
    ],
)
def test_it_is_as_large_as_what_was_asked_for_or_is_held(cpu_milli: int, devices: int, milli: int, weight: int) -> None:
    job = JobSpec(command=("true",), resources=Resources(devices=devices, cpu_milli=cpu_milli))
    ranks = [rank(f"n0-gpu{number}", number=number, milli=milli) for number in range(devices)]
    assert cpu_weight_of(part(job, *ranks)) == weight
