"""What an operator's command is told of a decision that is in the ledger."""

from types import SimpleNamespace
from typing import Any, cast

from libs.cli.pool_commands import decisions
from tests.ledger.test_follower import grow
from tests.ledger.world import POOL, World


async def test_a_record_of_it_is_found_though_it_was_shown_before_that_was_read(world: World) -> None:
    """Behind more records than are read at once; else the command would say that nothing differs."""

    async def shown() -> bool:
        return True

    async with decisions(cast(Any, SimpleNamespace(nats=world.clients[0])), POOL) as decided:
        await grow(world, 600)
        assert await decided(lambda record: record.t_us == 5_990, shown) == 600
        assert await decided(lambda record: False, shown) is None
