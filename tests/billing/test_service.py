"""The process itself: bills equal the integral of a hand-made ledger, quotas reach the inbox, teams see themselves."""

import asyncio
import json
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from nats.aio.client import Client

from libs.bus.queries import QueryError, ask
from libs.core.accelerators.kinds import accelerators_milli
from libs.core.projections.verify import Checker
from schemas import inbox, subjects
from schemas.billing import BillQuery, BillReply
from schemas.catalog import BY_TYPE
from schemas.inbox import QuotaChanged, RefusalTold
from schemas.pool_status import PoolStatusQuery
from tests.billing.ledgers import NOVEMBER, priced_world
from tests.billing.ledgers import ask as ask_for
from tests.cli.test_command import baton
from tests.core.builders import World, node
from tests.history.written import Service, Written, busy_world, until
from tests.kit.waiting import stored

BILL, QUOTAS = BY_TYPE["io.baton.bill.get.query.v1"], BY_TYPE["io.baton.quota.list.query.v1"]
GROUPS = ("team", "user", "day", "job", "attempt", "model", "class")


def integral(written: Written) -> dict[str, int]:
    checker = Checker()
    for seq, record in written.records:
        checker.step(seq, record, True)
    report = checker.finish()
    assert report.violations == []
    return report.by_team


async def billed(nats: Client, pool: str, written: Written, team: str, **query: object) -> BillReply:
    """The team's bill, once the service has read the whole ledger."""

    async def current() -> BillReply | None:
        try:
            reply = await ask(
                nats, BILL, BillQuery.model_validate(query), timeout_s=1, pool=pool, team=team, user="ana"
            )
        except TimeoutError:
            return None
        return reply if reply.ledger_seq >= written.records[-1][0] else None

    return await until(current, "a bill of the whole ledger")


async def told(nats: Client, pool: str) -> list[QuotaChanged]:
    """What placement finds in its inbox."""
    js = nats.jetstream()
    last = (await js.stream_info(subjects.inbox_stream(pool))).state.last_seq
    found = [await js.get_msg(subjects.inbox_stream(pool), seq=seq) for seq in range(1, last + 1)]
    of_changes = subjects.inbox("quota", "changed", pool)
    changes = [QuotaChanged.model_validate_json(m.data or b"") for m in found if m.subject == of_changes]
    for change in changes:  # for auditors: which command it was, or which version of the file
        assert change.cause.startswith("REQUESTS:" if change.user else f"teams:{pool}:")
        assert bool(change.policy) is not bool(change.user)
    return [change.model_copy(update={"cause": "", "policy": ""}) for change in changes]


async def exported(nats_url: str, pool: str, file: Path) -> tuple[int, dict[str, int]]:
    """What an export of all time comes to, and device -> units that it tells as unpriced."""
    words = ("bill", "export", str(file), "--from", "2026-01-01", "--to", "2027-12-31", "--pool", pool)
    result = await baton(*words, url=nats_url)
    assert result.code == 0, result.err
    about = json.loads(file.with_name(f"{file.name}.metadata.json").read_text())
    unpriced = Counter[str]()
    for one in about["x_Unpriced"]:
        unpriced[one["device"]] += one["units"]
    return sum(total["cost_micros"] for total in about["x_Totals"]), dict(unpriced)


async def test_a_bill_by_a_book_has_the_cost_of_its_export_whatever_the_file_says(
    nats: Client, nats_url: str, pool: str, tmp_path: Path
) -> None:
    """The shipped file has a price for the A100, the books of this ledger have none."""
    written = Written(nats.jetstream(), pool)
    async with Service("quota_billing", **environment(nats_url, pool, tmp_path)):
        await written.write(priced_world().records)
        cost, unpriced = await exported(nats_url, pool, tmp_path / "bill.csv")
        assert cost > 0
        assert set(unpriced) == {"A100"}
        zones = ({}, {"time_zone": "Europe/Berlin"})
        bills = [await billed(nats, pool, written, "operator", group_by=by, **zone) for by in GROUPS for zone in zones]
    told = {(b.total_cost_micros, b.unpriced_milli_us, b.unpriced_models, b.by_file) for b in bills}
    assert told == {(cost, unpriced["A100"], ("A100",), False)}


async def test_a_bill_by_the_file_says_that_exports_have_no_cost(
    nats: Client, nats_url: str, pool: str, team: str, tmp_path: Path
) -> None:
    """Seen: a cost in `baton bill`, all of it unpriced in the export, and no word of why."""
    written = Written(nats.jetstream(), pool)
    world = World()
    world.now_us = NOVEMBER
    world.send(inbox.NodeRegistered(incarnation=1, inventory=node("n0", 1), lease_s=10))
    world.send(inbox.NodeRegistered(incarnation=1, inventory=node("a0", 1, model="A100"), lease_s=10))
    for kind in ("H100", "A100"):
        world.started(job := ask_for(world, f"on-{kind}", 1, kind, team=team))
        world.send(after_us=1_000_000)
        world.released(job)
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: USD\nprices: [{model: H100, micros_per_device_hour: 3_600_000_000}]\n")
    env = environment(nats_url, pool, tmp_path) | {"BATON_PRICES_FILE": str(prices)}
    async with Service("quota_billing", **env):
        await written.write(world.records)
        cost, unpriced = await exported(nats_url, pool, tmp_path / "bill.csv")
        bills = [await billed(nats, pool, written, "operator", group_by=by) for by in GROUPS]
        said = await baton("bill", "--by", "device", "--pool", pool, "--team", "operator", url=nats_url)
    assert (cost, set(unpriced)) == (0, {"H100", "A100"})
    told = {(b.total_cost_micros > 0, b.unpriced_milli_us, b.unpriced_models, b.by_file) for b in bills}
    assert told == {(True, unpriced["A100"], ("A100",), True)}
    assert {b.total_milli_us for b in bills} == {sum(unpriced.values())}
    assert "no price book is applied: this cost uses the pool's prices file, and exports and" in said.err
    assert (
        "device-seconds of A100 have no price now and are in no cost; an operator adds them to the prices" in said.err
    )


def environment(nats_url: str, pool: str, tmp_path: Path, teams: str = "teams: {}") -> dict[str, str]:
    (tmp_path / "teams.yaml").write_text(teams)
    return {
        "BATON_NATS_URL": nats_url,
        "BATON_POOL": pool,
        "BATON_TEAMS_FILE": str(tmp_path / "teams.yaml"),
        "BATON_QUOTA_BILLING_SNAPSHOT_RECORDS": "9",
    }


async def test_bills_are_the_integral_of_the_ledger_through_kills(
    nats: Client, nats_url: str, pool: str, team: str, tmp_path: Path
) -> None:
    rivals = f"{team}-2"
    world: World = busy_world(team, rivals)
    written = Written(nats.jetstream(), pool)
    async with Service("quota_billing", **environment(nats_url, pool, tmp_path)) as service:
        third = len(world.records) // 3
        for start in range(0, len(world.records), third):
            await written.write(world.records[start : start + third])
            await written.forge(world.records[start])
            totals = integral(written)
            for one in (team, rivals):
                assert (await billed(nats, pool, written, one)).total_milli_us == totals.get(one, 0)
            await service.end(signal.SIGKILL)
            await service.start()
        replies = [await billed(nats, pool, written, "operator", group_by=group) for group in GROUPS]
        assert {r.total_milli_us for r in replies} == {sum(integral(written).values())}
        assert len({r.total_cost_micros for r in replies}) == 1
        assert {row.team for r in replies for row in r.rows} == {team, rivals}

        own = await billed(nats, pool, written, team, group_by="job")
        assert {row.team for row in own.rows} == {team}
        foreign = next(r.key for r in replies[GROUPS.index("job")].rows if r.team == rivals)
        nobody = await billed(nats, pool, written, team, job_id=foreign)
        assert nobody == await billed(nats, pool, written, team, job_id="job-" + "0" * 32)
        assert nobody.rows == ()
        with pytest.raises(QueryError) as refused:
            await ask(
                nats, BILL, BillQuery(from_day="2026-11-02", to_day="2026-11-01"), pool=pool, team=team, user="ana"
            )
        assert refused.value.status == "invalid"
        assert [r.field for r in refused.value.reasons] == ["from_day"]

        quotas = await ask(nats, QUOTAS, PoolStatusQuery(), pool=pool, team=team, user="ana")
        assert [t.team for t in quotas.teams] == [team]
        everybody = await ask(nats, QUOTAS, PoolStatusQuery(), pool=pool, team="operator", user="ana")
        assert {t.team: t.used_milli for t in everybody.teams if t.used_milli} == {
            t: accelerators_milli(used) for t, used in world.decider.state.used.items()
        }
        assert await service.end(signal.SIGTERM) == 0


async def test_the_files_quotas_are_told_once_and_again_when_they_change(
    nats: Client, nats_url: str, pool: str, team: str, tmp_path: Path
) -> None:
    async def reached(count: int) -> list[QuotaChanged]:
        async def enough() -> list[QuotaChanged] | None:
            found = await told(nats, pool)
            return found if len(found) >= count else None

        return await until(enough, f"{count} quotas in the inbox")

    settings = environment(nats_url, pool, tmp_path, f"teams:\n  {team}: {{devices: 2}}\n  free: {{devices: null}}\n")
    async with Service("quota_billing", **settings):
        assert await reached(1) == [QuotaChanged(team=team, limit_milli=2000)]
    settings = environment(nats_url, pool, tmp_path, f"teams:\n  {team}: {{devices: 2}}\n  late: {{devices: 0.5}}\n")
    async with Service("quota_billing", **settings):
        assert (await reached(2))[1:] == [QuotaChanged(team="late", limit_milli=500)]


async def test_an_operators_command_reaches_the_inbox_and_a_teams_is_refused(
    nats: Client, nats_url: str, pool: str, team: str, tmp_path: Path
) -> None:
    js = nats.jetstream()
    command = json.dumps({"team": team, "limit_milli": 4000}).encode()
    async with Service("quota_billing", **environment(nats_url, pool, tmp_path)):
        await js.publish(f"baton.cmd.quota.v1.set.{pool}.{team}.ana", command)
        await js.publish(f"baton.cmd.quota.v1.set.{pool}.operator.root", b'{"team": "x", "limit": 1}')
        await js.publish(f"baton.cmd.quota.v1.set.{pool}.operator.root", command)

        async def arrived() -> list[QuotaChanged]:
            return await told(nats, pool)

        assert await until(arrived, "the quota in the inbox") == [
            QuotaChanged(team=team, limit_milli=4000, user="root")
        ]
        dead = await js.pull_subscribe(subjects.dead("quota_billing"), stream=subjects.DEAD)
        letters = await dead.fetch(2, timeout=10)
        reasons = sorted((letter.headers or {})["Baton-Dead-Reason"] for letter in letters)
        assert "may not set quotas" in " ".join(reasons)
        refused = subjects.inbox("quota", "refused", pool)
        lines = [
            RefusalTold.model_validate_json(m.data).command
            for m in await stored(js, subjects.inbox_stream(pool), refused)
        ]
        said = {(line.team, line.user, line.what, line.service) for line in lines}
        assert said == {(team, "ana", "set", "quota_billing"), ("operator", "root", "set", "quota_billing")}
        assert all(line.cause.startswith("REQUESTS:") and line.reason and line.digest for line in lines)
        await dead.unsubscribe()


async def test_the_last_word_about_a_quota_counts_although_who_took_the_one_before_died(
    nats: Client, nats_url: str, pool: str, team: str, tmp_path: Path
) -> None:
    js, limits = nats.jetstream(), [0, *range(1000, 11_000, 1000)]
    (first, *others) = [json.dumps({"team": team, "limit_milli": limit}).encode() for limit in limits]
    await js.publish(f"baton.cmd.quota.v1.set.{pool}.operator.root", first)
    died = await js.pull_subscribe_bind(f"quota_billing-{pool}", stream=subjects.REQUESTS)
    (taken,) = await died.fetch(1, timeout=10)
    for command in others:
        await js.publish(f"baton.cmd.quota.v1.set.{pool}.operator.root", command)
    async with Service("quota_billing", **environment(nats_url, pool, tmp_path)):

        async def answers() -> bool:
            with suppress(TimeoutError):
                return bool(await ask(nats, QUOTAS, PoolStatusQuery(), timeout_s=1, pool=pool, team=team, user="ana"))
            return False

        await until(answers, "the service answers")
        await asyncio.sleep(1.5)  # what it would be given of the later ones, it has by now
        await taken.nak()  # in place of the 30 s after which it is given out again

        async def all_told() -> list[QuotaChanged] | None:
            found = await told(nats, pool)
            return found if len(found) == len(limits) else None

        assert [word.limit_milli for word in await until(all_told, "all quotas in the inbox")] == limits
    await died.unsubscribe()


async def test_limits_by_type_reach_the_inbox_and_what_there_is_not_is_laid_aside(
    nats: Client, nats_url: str, pool: str, team: str, tmp_path: Path
) -> None:
    js = nats.jetstream()
    by_type = {"H100": 8000, "H100:1g.10gb": 7000, "CPU": 2000}
    file = f"teams:\n  {team}: {{devices: null, types: {{A100: 1.5}}}}\n"
    async with Service("quota_billing", **environment(nats_url, pool, tmp_path, file)):
        for types in ({"H10O": 8000}, by_type):
            command = {"team": team, "limit_milli": 16_000, "by_type": types}
            await js.publish(f"baton.cmd.quota.v1.set.{pool}.operator.root", json.dumps(command).encode())

        async def arrived() -> list[QuotaChanged] | None:
            return found if len(found := await told(nats, pool)) == 2 else None

        assert sorted(await until(arrived, "both in the inbox"), key=lambda m: len(m.by_type)) == [
            QuotaChanged(team=team, limit_milli=None, by_type={"A100": 1500}),
            QuotaChanged(team=team, limit_milli=16_000, by_type=by_type, user="root"),
        ]
        dead = await js.pull_subscribe(subjects.dead("quota_billing"), stream=subjects.DEAD)
        reasons: list[str] = []
        while not any("H10O" in reason for reason in reasons):  # the stream is shared with other tests' letters
            letters = await dead.fetch(1, timeout=10)
            reasons += [(letter.headers or {})["Baton-Dead-Reason"] for letter in letters]
        assert "by_type.H10O = 8000: no such device type: did you mean H100?" in reasons[-1]
        await dead.unsubscribe()
