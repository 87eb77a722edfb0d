"""Finance as the services see it: all teams' bills, and the ledger in parts, from which the same exports are made."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.client import Client

from libs.bus.connect import Address
from libs.bus.queries import QueryError, ask
from libs.cli.ledger_by_parts import archived_by_parts, export_by_parts, ledger_by_parts
from libs.client import Baton, connect
from libs.ledger import parts
from libs.ledger.export import FileStart
from libs.ledger.parts import messages_of, part_after
from libs.ledger.verify import export
from schemas.billing import BillQuery
from schemas.catalog import BY_TYPE
from schemas.proofs import LedgerRead
from schemas.subjects import FINANCE, OPERATOR
from tests.billing.ledgers import priced_world
from tests.billing.test_service import environment
from tests.history.written import Service, Written
from tests.kit.waiting import until

READ = BY_TYPE["io.baton.ledger.records.query.v1"]


async def test_finance_is_told_all_bills_and_gets_the_ledger_to_the_byte(
    nats: Client, nats_url: str, pool: str, tmp_path: Path
) -> None:
    written = Written(nats.jetstream(), pool)
    world = priced_world()
    await written.write(world.records[:9])
    await written.forge(world.records[9])
    await written.write(world.records[9:])
    async with (
        Service("quota_billing", **environment(nats_url, pool, tmp_path)),
        await connect(Address(nats_url), FINANCE, user="fay", pool=pool) as fay,
        await connect(Address(nats_url), OPERATOR, user="olga", pool=pool) as olga,
    ):

        async def whole() -> bool:
            try:
                return (await olga.bill(BillQuery())).ledger_seq >= written.records[-1][0]
            except Exception:
                return False

        await until(whole)
        assert (await fay.bill(BillQuery(group_by="user"))).rows == (await olga.bill(BillQuery(group_by="user"))).rows
        assert len({row.team for row in (await fay.bill(BillQuery())).rows}) > 1
        source = await ledger_by_parts(fay, None, asked := tmp_path / "asked.jsonl")
        await export(nats.jetstream(), pool, read := tmp_path / "read.jsonl")
        assert asked.read_bytes() == read.read_bytes()
        assert source.head.seq == written.records[-1][0]
        with pytest.raises(QueryError, match="may not read the ledger"):
            await ask(nats, READ, LedgerRead(), pool=pool, team="blue", user="ana")


async def test_parts_follow_each_other_and_begin_behind_what_was_archived(
    nats: Client, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    js, world = nats.jetstream(), priced_world()
    written = Written(js, pool)
    await written.write(world.records)
    monkeypatch.setattr(parts, "MOST_MESSAGES", 7)
    asked: list[int] = []

    async def after(seq: int) -> Any:
        asked.append(seq)
        return await part_after(js, pool, seq)

    baton = cast(Baton, SimpleNamespace(ledger_after=after, place=SimpleNamespace(pool=pool)))
    await export_by_parts(baton, tmp_path / "asked.jsonl", FileStart(pool))
    assert asked == list(range(0, len(world.records), 7))
    await export(js, pool, tmp_path / "read.jsonl")
    assert (tmp_path / "asked.jsonl").read_bytes() == (tmp_path / "read.jsonl").read_bytes()
    nothing = await part_after(js, pool, len(world.records))
    assert (list(messages_of(nothing)), nothing.first_seq, nothing.last_seq) == ([], 1, len(world.records))
    assert (await archived_by_parts(baton, None)).last_seq == 0
    monkeypatch.setattr(parts, "MOST_BYTES", 1)
    assert len(list(messages_of(await part_after(js, pool, 0)))) <= 7
