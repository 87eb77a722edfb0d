"""The clock of a real machine is set, a day forward and back again, while work runs on it."""

from itertools import pairwise
from pathlib import Path

import pytest

from libs.cli.launch import LaunchOptions, LocalStack
from libs.client import Baton, connect
from schemas.billing import BillQuery
from schemas.jobs import JobSpec, JobState, Simulation
from schemas.ledger import ClockJumped, LedgerRecord
from schemas.resources import Resources
from schemas.subjects import OPERATOR, ledger
from tests.faults.chaos import clocks
from tests.faults.cluster import deaths
from tests.kit.waiting import stored, until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(bool(clocks.why_not()), reason=clocks.why_not()),
]
HOURS, FLEET = 24, Path("deploy/fleets/peers-4x8.yaml")
NEEDED = ("admission", "placement", "telemetry", "leases", "history", "quota_billing")


def job(lasts_s: float, limit_s: float) -> JobSpec:
    simulation, held = Simulation(duration_s=lasts_s), Resources(devices=4)
    return JobSpec(command=("x",), resources=held, time_limit_s=limit_s, simulation=simulation)


async def test_a_clock_that_is_set_forward_and_back_ends_no_work_and_costs_nothing(tmp_path: Path) -> None:
    """Issue 9, finding 10: a job of two hours ended in its first minute, and after the step back nothing ended for minutes."""
    options = LaunchOptions(state_dir=tmp_path / "state", teams=("a",), fleet=FLEET, scale=0.05, services=NEEDED)
    with clocks.machine(tmp_path) as machine:
        async with (
            LocalStack(options) as stack,
            await connect(stack.address("a"), "a") as team,
            await connect(stack.address(OPERATOR), OPERATOR) as operator,
        ):

            async def jumps() -> list[ClockJumped]:
                return [e for record in await records(operator) for e in record.events if isinstance(e, ClockJumped)]

            async def ends(spec: JobSpec, key: str) -> str:
                return (await team.wait((await team.submit(spec, key)).job_id, timeout_s=60)).state

            held = (await team.submit(job(3600, 2 * 3600), "held")).job_id
            lives = 0
            while not any(
                record.clock for record in await records(operator)
            ):  # a jump is told from one tick to the next
                lives += 1
                assert await ends(job(0.1, 0), f"before {lives}") == JobState.SUCCEEDED
            for number, hours in enumerate((HOURS, 0), 1):
                machine.wall(hours)

                async def told(number: int = number) -> bool:
                    return len(await jumps()) == number

                await until(told, 30)
                assert await ends(job(0.1, 2 * 3600), f"done {hours}") == JobState.SUCCEEDED
                assert await ends(job(3600, 1), f"limited {hours}") == JobState.FAILED
            there, back = await jumps()
            assert there.to_us - there.from_us == pytest.approx(HOURS * 3600e6, abs=60e6)
            assert back.from_us - back.to_us == pytest.approx(HOURS * 3600e6, abs=60e6)
            assert [attempt.outcome for attempt in (await team.get(held)).attempts] == [""], "its first goes on"
            await team.cancel(held)
            assert (await team.wait(held, timeout_s=60)).state == JobState.CANCELLED
            times = [record.t_us for record in await records(operator)]
            assert all(earlier <= later for earlier, later in pairwise(times))
            assert times[-1] - times[0] < 3600e6

            async def billed_as_held() -> bool:
                attempts = [attempt for one in await team.list() for attempt in one.attempts]
                if not all(attempt.granted_us and attempt.closed_us for attempt in attempts):
                    return False  # what is told of them comes after the end
                held_us = sum(4 * ((attempt.closed_us or 0) - (attempt.granted_us or 0)) for attempt in attempts)
                days = await team.bill(BillQuery(group_by="day"))
                assert len({row.key for row in days.rows}) >= 2, "days are those that the broker's clock has shown"
                return days.total_milli_us == (await team.bill()).total_milli_us == held_us * 1000

            await until(billed_as_held, 30)
            assert not deaths(stack)


async def records(operator: Baton) -> list[LedgerRecord]:
    found = await stored(operator.nats.jetstream(), "LEDGER-main", ledger("main"))
    return [LedgerRecord.model_validate_json(message.data) for message in found]
