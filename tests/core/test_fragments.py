"""What is free and of no use to what waits: told by placement with its ticks, kept as a split of what is idle."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.billing.accounts import DEVICE_UNITS, Account, Accounts
from libs.core.scheduling.fragments import fragments
from libs.core.state import snapshot
from libs.core.state.formats import FORMAT_OF
from libs.ledger.audited import AuditedLedger
from schemas import inbox
from schemas.ledger import DevicesFragmented, LedgerRecord
from tests.core.builders import World, job, node
from tests.core.random_ledgers import RandomLedger
from tests.core.test_repartition import ask, cut

S = 1_000_000


def told(world: World) -> list[dict[str, int]]:
    """What a tick a second later tells."""
    return [e.units for e in world.send(inbox.Tick(), after_us=S) if isinstance(e, DevicesFragmented)]


def split(world: World, until_us: int | None = None) -> tuple[int, int]:
    """Unit-microseconds that are fragmented, and idle."""
    books = Accounts()
    for seq, record in enumerate(world.records, 1):
        books.apply(record, seq)
    return books.fragmented_unit_us(until_us), books.balances(until_us)[Account.IDLE]


def test_whole_devices_that_are_too_few_for_a_gang() -> None:
    world = World(node("n0", 4))
    world.submit(job("three", 3))
    assert told(world) == [], "nothing waits"
    gang, since_us = world.submit(job("gang", 2)), world.now_us
    assert told(world) == [{"H100": DEVICE_UNITS}]
    assert told(world) == [], "told once"
    world.send(inbox.CancelRequested(job_id=gang, team="research", user="u", reason="enough"))
    assert told(world) == [{}]
    assert split(world, world.now_us + 9 * S)[0] == DEVICE_UNITS * (world.now_us - since_us - S)
    world.check()


def test_what_becomes_idle_or_is_granted_between_two_ticks() -> None:
    world = World(node("n0", 4))
    world.started(three := world.submit(job("three", 3)))
    world.submit(job("gang", 4))
    assert told(world) == [{"H100": DEVICE_UNITS}]
    before = split(world)[0]
    world.submit(job("one"))
    world.send(after_us=5 * S)
    assert split(world)[0] == before + DEVICE_UNITS * 1000, "until the record that granted it"
    world.released(three)
    world.send(after_us=2 * S)
    assert split(world)[0] - before > DEVICE_UNITS * 2 * S, "as much as was told last"
    assert told(world) == [{"H100": 3 * DEVICE_UNITS}]
    world.check()


def test_thousandths_that_are_too_few() -> None:
    world = World(node("n0", 1))
    world.submit(job("most", share_milli=600))
    world.submit(job("whole"))
    assert told(world) == [{"H100": 2800}]
    world.check()


def test_instances_that_are_too_small_and_what_is_in_none() -> None:
    world = World(cut("n0", {"b0": (("1g.10gb", 0), ("3g.40gb", 4))}))
    world.submit(ask("used", "3g.40gb"))
    world.submit(ask("large", "3g.40gb"))
    assert told(world) == [{"H100": 3000, "H100:1g.10gb": 1000}]
    world.check()


def test_a_device_of_a_kind_that_nobody_waits_for_is_of_no_use() -> None:
    world = World(node("n0", 1), node("n1", 1, model="L4"))
    world.submit(job("first", types=("H100",)))
    world.submit(job("second", types=("H100",)))
    assert told(world) == [{"L4": DEVICE_UNITS}]


def test_a_free_device_that_a_waiting_job_fits_is_no_fragment() -> None:
    """Its team has reached its limit; that is not the device's fault."""
    world = World(node("n0", 4))
    world.send(inbox.QuotaChanged(team="blue", limit_milli=1000))
    world.submit(job("b0", team="blue"))
    world.submit(job("two", 2))
    world.submit(job("gang", 2))
    assert told(world) == [{"H100": DEVICE_UNITS}]
    world.submit(job("b1", team="blue"))
    assert told(world) == [{}]
    world.send(inbox.CancelRequested(job_id=job("b1", team="blue").job_id, team="blue", user="u", reason="enough"))
    world.submit(job("b2", 2, team="blue"))
    assert told(world) == [{"H100": DEVICE_UNITS}], "two would not fit, whatever the limit"
    world.check()


def test_who_waits_for_his_limit_alone_or_for_nodes_that_are_not_there_makes_no_fragments() -> None:
    world = World(node("n0", 2), node("n1", 1, model="L4"))
    world.send(inbox.QuotaChanged(team="blue", limit_milli=0))
    world.submit(job("limited", 2, team="blue"))
    world.submit(job("elsewhere", types=("L4",)))
    world.submit(job("next", types=("L4",)))
    world.send(inbox.NodeLost(node="n1", incarnation=1, silent_s=100))
    assert told(world) == []
    world.check()


def test_what_is_kept_or_out_of_use_is_not_idle_and_so_no_fragment() -> None:
    world = World(node("n0", 2), node("n1", 1))
    world.send(inbox.CordonNode(node="n1", reason="a fan", user="olga"))
    world.started(world.submit(job("half", team="blue")))
    world.submit(job("gang", 2))
    assert told(world) == [{"H100": DEVICE_UNITS}]
    world.send(inbox.Tick(), after_us=70 * S)
    assert world.decider.state.reserved
    assert world.decider.state.fragmented == {}
    world.check()


def test_it_is_a_state_that_is_saved_and_older_readers_are_not_told() -> None:
    world, older = World(node("n0", 1)), World(node("n0", 1), allowed=FORMAT_OF["devices.fragmented"] - 1)
    for one in (world, older):
        one.submit(job("gang", 2))
        one.submit(job("most", share_milli=600))
        one.submit(job("more", share_milli=600))
    assert told(older) == []
    assert told(world) == [{"H100": 2800}]
    assert snapshot.load(list(snapshot.dump(world.decider.state))).state.fragmented == {"H100": 2800}
    world.check()


@pytest.mark.parametrize("units", [{"H100": DEVICE_UNITS + 1}, {"L4": 1}, {"H100": 99 * DEVICE_UNITS}])
def test_a_ledger_that_tells_more_than_is_idle_is_violated(units: dict[str, int]) -> None:
    world = World(node("n0", 2))
    world.submit(job("one"))
    world.submit(job("gang", 2))
    told(world)
    audited = AuditedLedger()
    for seq, record in enumerate(world.records, 1):
        events = [
            e.model_copy(update={"units": units}) if isinstance(e, DevicesFragmented) else e for e in record.events
        ]
        audited.step(seq, record.model_copy(update={"events": tuple(events)}), valid=True)
    assert any(violation.startswith("I16") for violation in audited.finish().violations)


SIZES = st.sampled_from((1, 2, 3, 4, 6))
ASKED = st.tuples(SIZES, st.sampled_from((300, 600, 1000)), st.sampled_from(((), ("L4",))), st.sampled_from(("a", "b")))


@given(
    st.lists(st.tuples(SIZES, st.sampled_from(("H100", "L4"))), min_size=1, max_size=4), st.lists(ASKED, max_size=12)
)
@settings(max_examples=60)
def test_fragments_are_idle_and_of_use_to_nobody(nodes: list, asked: list) -> None:
    world = World(*(node(f"n{n}", size, model=model) for n, (size, model) in enumerate(nodes)))
    world.send(inbox.QuotaChanged(team="b", limit_milli=2000))
    for n, (devices, milli, types, team) in enumerate(asked):
        whole = devices > 1
        world.submit(job(f"j{n}", devices, team=team, types=types, share_milli=1000 if whole else milli))
    told(world)
    state, plan = world.decider.state, world.decider.plan
    found = fragments(state, plan.waiting)
    assert found == state.fragmented
    world.check()  # among others that it is not more than is idle
    fleet, free = state.fleet, state.fleet.free_milli.tolist()
    for shape in {key.shape for key in state.queues if key.shape.devices == 1}:
        rest = Counter[str]()
        for row in range(len(fleet)):
            fits = free[row] >= shape.milli and (not shape.types or fleet.kind(row) in shape.types)
            rest[fleet.kind(row)] += 0 if fits else 7 * free[row]
        assert all(units <= rest[kind] for kind, units in found.items()), "what a waiting job fits is no fragment"
    if not state.queues:
        assert found == {}


@given(st.integers(0, 2**63), st.integers(0, 40))
@settings(max_examples=40)
def test_the_split_is_never_more_than_what_is_idle_whatever_is_told(seed: int, saved_at: int) -> None:
    chance, books = Random(seed), Accounts()
    for seq, record in enumerate(RandomLedger(seed).records, 1):
        if chance.random() < 0.4:
            units = {
                kind: chance.randrange(1, 30_000) for kind in ("H100", "H100:1g.10gb", "GPU") if chance.random() < 0.7
            }
            record = LedgerRecord.model_copy(
                record, update={"events": (*record.events, DevicesFragmented(units=units))}
            )
        before = books.fragmented_unit_us()
        books.apply(record, seq)
        if seq == saved_at:
            books = Accounts.load(list(books.dump()))
        assert all(0 <= units <= books.idle[kind] for kind, units in books.fragmented.items())
        assert 0 <= books.fragmented_unit_us() <= books.balances()[Account.IDLE]
        assert books.fragmented_unit_us(books.t_us + S) >= min(before, books.balances()[Account.IDLE])
        assert sum(books.balances().values()) == books.capacity_unit_us()
